// Package secret tells what is a secret in the environment and the arguments of commands, and takes it out of what is written down.
package secret

import (
	"regexp"
	"slices"
	"strings"
)

// words are parts of names, in capitals, of variables that hold secrets.
var words = []string{"API_KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "PRIVATE_KEY", "ACCESS_KEY"}

// names of variables that hold secrets although no word says so.
var names = []string{
	"MYSQL_PWD", "DATABASE_URL", "REDIS_URL", "MONGO_URL", "MONGODB_URI", "AMQP_URL", "SENTRY_DSN", "GH_PAT", "GITHUB_PAT", "NPM_CONFIG__AUTH", "DOCKER_AUTH_CONFIG",
}

// IsName says whether a variable of this name, or an option, holds a secret.
func IsName(name string) bool {
	name = strings.ToUpper(strings.ReplaceAll(strings.TrimLeft(name, "-"), "-", "_"))
	return slices.Contains(names, name) || slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) })
}

// Masked stands for a secret.
const Masked = "[secret]"

// minValue is how long a variable's value must be to be looked for: "1" or "yes" in an argument is no secret.
const minValue = 6

// Values returns the values of variables that hold secrets, the longest first.
func Values(vars []string) []string {
	var out []string
	for _, v := range vars {
		if _, value, _ := strings.Cut(v, "="); len(value) >= minValue && !slices.Contains(out, value) {
			out = append(out, value)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}

var (
	// name= and name: in front of a value
	assignment = regexp.MustCompile(`([A-Za-z0-9_.-]*[A-Za-z0-9_])["']?\s*[=:]\s*`)
	// a value, which may be in quotes
	value = regexp.MustCompile(`^(?:\[secret\]|"[^"]*"|'[^']*'|[^\s"'&;,]+)`)
	// scheme://user:password@host, or a token in place of both
	userinfo = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)([^/\s@]+)@`)
	// an HTTP header, to the end of the line
	header = regexp.MustCompile(`(?i)\b((?:proxy-)?authorization|cookie|set-cookie|x-api-key|x-auth-token|private-token)(\s*[:=]\s*)[^\r\n"']+`)
	// the schemes of that header, wherever they are
	bearer = regexp.MustCompile(`(?i)\b(bearer|basic)(\s+)[A-Za-z0-9+/_.~=-]{8,}`)
	// tokens that are known by their looks: GitHub, GitLab, Slack, npm, AWS, Google, OpenAI, Anthropic, Stripe, JSON web tokens
	token = regexp.MustCompile(`\b(?:gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|npm_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|sk-[A-Za-z0-9_-]{16,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*)`)
)

// options are those whose value, in the next argument, is a secret, besides those that IsName knows.
var options = []string{"--pass", "--pw", "--oauth2-bearer", "--bearer"}

// pairs are options whose value, in the next argument, may be user:password.
var pairs = []string{"-u", "-U", "--user", "--proxy-user", "--auth"}

// attached are commands whose -p has the password right behind it.
var attached = regexp.MustCompile(`^(?:.*/)?(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump|mariadb-admin|sshpass|7z|7za|zip|unrar)$`)

// longUser is how long the part in front of the @ of a URL must be to be taken for a token.
const longUser = 20

// Mask returns argv without secrets: the values (see Values), passwords in URLs, headers, values of options and
// assignments whose names say so, and tokens known by their looks.
func Mask(argv, values []string) []string {
	out := make([]string, len(argv))
	takesP := false // a -p means a password here
	before := ""
	for i, arg := range argv {
		takesP = takesP || attached.MatchString(arg)
		user, _, isPair := strings.Cut(arg, ":")
		switch {
		case arg == "":
		case takesP && before == "-p", isSecretOption(before):
			out[i] = Masked
		case isPair && slices.Contains(pairs, before):
			out[i] = maskText(user, values) + ":" + Masked
		case takesP && len(arg) > 2 && strings.HasPrefix(arg, "-p"):
			out[i], arg = "-p"+Masked, ""
		default:
			out[i] = maskText(arg, values)
		}
		before = arg
	}
	return out
}

// isSecretOption says whether arg is an option with a secret in the next argument.
func isSecretOption(arg string) bool {
	return strings.HasPrefix(arg, "-") && !strings.ContainsAny(arg, "=: ") && (IsName(arg) || slices.Contains(options, arg))
}

// maskText takes secrets out of one argument, which may be a whole script.
func maskText(s string, values []string) string {
	for _, v := range values {
		s = strings.ReplaceAll(s, v, Masked)
	}
	s = userinfo.ReplaceAllStringFunc(s, func(m string) string {
		g := userinfo.FindStringSubmatch(m)
		if user, _, ok := strings.Cut(g[2], ":"); ok {
			return g[1] + user + ":" + Masked + "@"
		}
		if len(g[2]) >= longUser {
			return g[1] + Masked + "@"
		}
		return m // a user alone, as git@host
	})
	s = header.ReplaceAllString(s, "${1}${2}"+Masked)
	s = bearer.ReplaceAllString(s, "${1}${2}"+Masked)
	return token.ReplaceAllString(maskAssignments(s), Masked)
}

// maskAssignments takes out values behind names that say so.
func maskAssignments(s string) string {
	var out strings.Builder
	for {
		at := assignment.FindStringSubmatchIndex(s)
		if at == nil {
			return out.String() + s
		}
		name := s[at[2]:at[3]]
		out.WriteString(s[:at[1]])
		s = s[at[1]:]
		if n := len(value.FindString(s)); n > 0 && IsName(name) {
			out.WriteString(Masked)
			s = s[n:]
		}
	}
}
