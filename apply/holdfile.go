package apply

import (
	"slices"
	"strings"
)

// HoldHeader begins the file in which the user says what else is to be held back, and what of DefaultHold is not. Earlier
// versions of the program wrote all of DefaultHold into it, below another header.
const HoldHeader = `# What commit holds back beside its own list, which is in the file commit-hold.defaults here: one pattern a line, like there.
# A pattern with ! in front, as it is written there, is not held back: !.npmrc
`

// firstHoldHeader begins files that the first versions wrote.
const firstHoldHeader = "# What commit does not bring unless it is told to: one pattern a line."

// laterHold are patterns of DefaultHold that not every such file had from the beginning: there it says nothing that they are missing.
var laterHold = strings.Fields(`.git/commondir .git/**/commondir .git/**/git-rebase-todo .hg/hgrc-not-shared .hg/sharedpath rewindfs.toml
.mise.local.toml mise.local.toml .mise/** .config/mise.toml .config/mise/** .rvmrc .codex/config.toml .gemini/settings.json .pnp.cjs .pnp.loader.mjs
bunfig.toml .mvn/** .dir-locals-2.el .Rprofile .RData .irbrc .pryrc .iex.exs .ghci .ocamlinit .octaverc .pdbrc`)

// NewHoldFile brings the text of a user's file to the form that HoldHeader describes: of one of an earlier version it keeps what
// the user added and took out. Any other comes back as it is.
func NewHoldFile(text string) string {
	if !strings.HasPrefix(text, firstHoldHeader) {
		return text
	}
	defaults, lines := holdLines(DefaultHold), holdLines(text)
	var b strings.Builder
	b.WriteString(HoldHeader)
	for _, d := range defaults {
		if d[0] != '#' && !slices.Contains(lines, d) && !slices.Contains(laterHold, d) {
			b.WriteString("!" + d + "\n")
		}
	}
	for _, l := range lines {
		if !slices.Contains(defaults, l) {
			b.WriteString(l + "\n")
		}
	}
	return b.String()
}

// holdLines are the lines of text that say something, comments too.
func holdLines(text string) []string {
	var out []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
