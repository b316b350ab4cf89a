package secret

import (
	"slices"
	"strings"
	"testing"
)

func TestIsName(t *testing.T) {
	for name, want := range map[string]bool{
		"OPENAI_API_KEY": true, "GITHUB_TOKEN": true, "aws_secret_access_key": true, "PGPASSWORD": true, "DB_PASSWD": true,
		"GOOGLE_APPLICATION_CREDENTIALS": true, "DATABASE_URL": true, "MYSQL_PWD": true, "--api-key": true, "--password": true,
		"PATH": false, "HOME": false, "LANG": false, "KEYBOARD": false, "--verbose": false, "PASS_THROUGH": false, "": false,
	} {
		if IsName(name) != want {
			t.Errorf("%q holds a secret: %t", name, !want)
		}
	}
}

func TestMask(t *testing.T) {
	env := []string{"MY_TOKEN=hunter22", "LONG_SECRET=hunter22-and-more", "DEBUG_TOKEN=1", "EMPTY_TOKEN="}
	for _, c := range []struct{ argv, want string }{
		{"npm install", "npm install"},
		{"go test ./... -run Token", "go test ./... -run Token"},
		{"tool --password=abc --user=me", "tool --password=[secret] --user=me"},
		{"tool --password abc next", "tool --password [secret] next"},
		{"tool --api-key abc --verbose", "tool --api-key [secret] --verbose"},
		{"mysql -psecret1 db", "mysql -p[secret] db"},
		{"sudo /usr/bin/mysqldump -u root -p secret1 db", "sudo /usr/bin/mysqldump -u root -p [secret] db"},
		{"mkdir -p a/b", "mkdir -p a/b"},
		{"make -pn", "make -pn"},
		{"env TOKEN=abc GITHUB_TOKEN=xyz make", "env TOKEN=[secret] GITHUB_TOKEN=[secret] make"},
		{"docker run -e DB_PASSWORD=x img", "docker run -e DB_PASSWORD=[secret] img"},
		{"git clone https://me:pw@host/r.git", "git clone https://me:[secret]@host/r.git"},
		{"git clone https://0123456789abcdef0123456789abcdef@host/r.git", "git clone https://[secret]@host/r.git"},
		{"git clone ssh://git@host/r.git", "git clone ssh://git@host/r.git"},
		{"git push -u origin main", "git push -u origin main"},
		{"curl -u me:pw http://h", "curl -u me:[secret] http://h"},
		{"curl -H|Authorization: Bearer abcdefghijkl|http://h", "curl -H|Authorization: [secret]|http://h"},
		{"curl -H|X-Api-Key: abc|http://h?token=abc&x=1", "curl -H|X-Api-Key: [secret]|http://h?token=[secret]&x=1"},
		{`sh -c|curl -H 'Authorization: Basic YWJj' http://h; PASSWORD="a b" run`, `sh -c|curl -H 'Authorization: [secret]' http://h; PASSWORD=[secret] run`},
		{`curl -d|{"user":"me","password":"a b"}`, `curl -d|{"user":"me","password":[secret]}`},
		{"echo hunter22 hunter22-and-more 1", "echo [secret] [secret] 1"},
		{"echo ghp_0123456789abcdefghij0123456789 AKIAABCDEFGHIJKLMNOP", "echo [secret] [secret]"},
		{"tool --token-ttl=5 --tokens", "tool --token-ttl=[secret] --tokens"},
		{"tool --password", "tool --password"},
		{"tool --password| ", "tool --password|[secret]"},
		{"", ""},
	} {
		sep := " "
		if strings.Contains(c.argv, "|") {
			sep = "|"
		}
		argv := strings.Split(c.argv, sep)
		if sep == "|" {
			argv = append(strings.Split(argv[0], " "), argv[1:]...)
		}
		got := Mask(argv, Values(env))
		if want := strings.ReplaceAll(c.want, "|", " "); strings.Join(got, " ") != want {
			t.Errorf("%q\nbecame %q\nwant   %q", argv, strings.Join(got, " "), want)
		}
		if again := Mask(got, Values(env)); !slices.Equal(again, got) {
			t.Errorf("%q\nbecame %q the second time", got, again)
		}
	}
}

// No place that is known to hold a secret keeps it, whatever stands around.
func FuzzMask(f *testing.F) {
	f.Add("hunter22", "curl", "http://h")
	f.Add("p@ss:word", "mysql", "--x=\"")
	f.Add("Bearer", "Authorization: x", "a:b@c")
	f.Fuzz(func(t *testing.T, value, before, after string) {
		if len(value) < minValue || strings.Contains(Masked, value) || strings.Contains(before+after, value) {
			return
		}
		hide := func(argv []string, values ...string) {
			got := Mask(argv, values)
			if len(got) != len(argv) {
				t.Fatalf("%q became %q", argv, got)
			}
			if strings.Contains(strings.Join(got, "\n"), value) {
				t.Errorf("%q is still in %q", value, got)
			}
		}
		hide([]string{before, "--password", value, after})
		hide([]string{before, value + after}, value)
		if !strings.ContainsAny(value, " \t\n\r\f\v\"'&;,") && !strings.ContainsFunc(value, func(r rune) bool { return r > 127 || r < ' ' }) {
			hide([]string{before, "--api-key=" + value, after})
			hide([]string{before, "X_TOKEN=" + value, after})
			if !strings.ContainsAny(value, "/@") {
				hide([]string{before, "https://user:" + value + "@host/", after})
			}
			hide([]string{before, "Authorization: token " + value, after})
		}
	})
}
