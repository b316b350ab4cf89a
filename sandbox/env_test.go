package sandbox

import (
	"slices"
	"testing"
)

func TestSecretsAreTakenOutOfTheEnvironment(t *testing.T) {
	secret := []string{
		"OPENAI_API_KEY=x", "anthropic_api_key=x", "GITHUB_TOKEN=x", "AWS_SECRET_ACCESS_KEY=x", "AWS_ACCESS_KEY_ID=x", "AWS_SESSION_TOKEN=x", "DB_PASSWORD=x",
		"MYSQL_PWD=x", "PGPASSWORD=x", "SUDO_PASSWD=x", "GOOGLE_APPLICATION_CREDENTIALS=/x", "SSH_AUTH_SOCK=/tmp/x", "NPM_TOKEN=x",
		"DATABASE_URL=postgres://me:hunter2@db/prod", "PIP_INDEX_URL=https://u:p@host/simple", "ODD=x://%zz:p@host",
	}
	plain := []string{
		"PATH=/bin", "HOME=/home/me", "LANG=C", "EDITOR=vi", "MAX_THINKING_TOKENS=100", "URL=https://me@host/", "AT=a@b.c", "KEYBOARD=us", "EMPTY=",
		"SECRETARY_OF=no", // its name has SECRET in it: better one too many
	}
	kept, removed := Scrub(slices.Concat(secret, plain), nil)
	if want := plain[:len(plain)-1]; !slices.Equal(kept, want) {
		t.Errorf("kept %q, want %q", kept, want)
	}
	if len(removed) != len(secret)+1 {
		t.Errorf("removed %q", removed)
	}
}

func TestVariablesThatAreLetThrough(t *testing.T) {
	env := []string{"GITHUB_TOKEN=t", "NPM_TOKEN=n", "A=1"}
	kept, removed := Scrub(env, []string{"GITHUB_TOKEN", "A=2", "NEW_SECRET=s"})
	if want := []string{"GITHUB_TOKEN=t", "A=2", "NEW_SECRET=s"}; !slices.Equal(kept, want) {
		t.Errorf("kept %q, want %q", kept, want)
	}
	if want := []string{"NPM_TOKEN=n"}; !slices.Equal(removed, want) {
		t.Errorf("removed %q, want %q", removed, want)
	}
	if env[2] != "A=1" {
		t.Error("the caller's list was changed")
	}
}
