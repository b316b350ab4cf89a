package sandbox

import (
	"net/url"
	"slices"
	"strings"
)

// secretParts are parts of names of variables that hold secrets. A name counts in capitals.
var secretParts = []string{"API_KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "PRIVATE_KEY", "ACCESS_KEY"}

// secretNames are names that have none of these parts.
var secretNames = []string{
	"PGPASS", "MYSQL_PWD", "REDISCLI_AUTH", "NPM_AUTH", "NPM_CONFIG__AUTH", "GH_PAT", "GITHUB_PAT", "SENTRY_DSN",
	// With them programs act for the user without ever seeing a secret.
	"SSH_AUTH_SOCK", "SSH_AGENT_PID", "GPG_AGENT_INFO", "DBUS_SESSION_BUS_ADDRESS", "XAUTHORITY",
}

// harmlessNames have such a part and hold no secret.
var harmlessNames = []string{"MAX_THINKING_TOKENS", "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "TOKENIZERS_PARALLELISM"}

// IsSecretName reports whether a variable of this name is kept from commands unless Rules.Env names it.
func IsSecretName(name string) bool {
	name = strings.ToUpper(name)
	if slices.Contains(harmlessNames, name) {
		return false
	}
	return slices.Contains(secretNames, name) || slices.ContainsFunc(secretParts, func(part string) bool { return strings.Contains(name, part) })
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
