package sandbox

import (
	"net/url"
	"slices"
	"strings"

	"github.com/rewindfs/rewindfs/internal/secret"
)

// doors are names of variables by whose help programs act for the user without ever seeing a secret, and more that hold one.
var doors = []string{"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY", "PGPASS", "REDISCLI_AUTH"}

// harmless are names that look like a secret's and hold none.
var harmless = []string{"MAX_THINKING_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "TOKENIZERS_PARALLELISM"}

// IsSecretName reports whether a variable of this name is kept from commands unless Rules.Env names it.
func IsSecretName(name string) bool {
	upper := strings.ToUpper(name)
	return !slices.Contains(harmless, upper) && (secret.IsName(name) || slices.Contains(doors, upper))
}

// hasPassword reports whether a value is an address with a password in it, such as postgres://user:password@host/db.
func hasPassword(value string) bool {
	if !strings.Contains(value, "://") || !strings.Contains(value, "@") {
		return false
	}
	u, err := url.Parse(value)
	if err != nil {
		return true // an odd one, with something before an @
	}
	_, ok := u.User.Password()
	return ok
}

// Scrub takes the secrets out of an environment. It keeps what let names; an entry of let that is NAME=VALUE sets a variable.
// Removed are the entries that were taken out, as they were, for whoever must know what to mask.
func Scrub(env, let []string) (kept, removed []string) {
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case slices.Contains(let, name):
			kept = append(kept, v)
		case IsSecretName(name) || hasPassword(value):
			removed = append(removed, v)
		default:
			kept = append(kept, v)
		}
	}
	return setEnv(kept, let...), removed
}

// setEnv sets variables, given as NAME=VALUE; what has no "=" is passed over.
func setEnv(env []string, set ...string) []string {
	for _, v := range set {
		name, _, ok := strings.Cut(v, "=")
		if !ok {
			continue
		}
		env = slices.DeleteFunc(slices.Clone(env), func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, v)
	}
	return env
}
