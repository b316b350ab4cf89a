package rewindfs

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/rewindfs/rewindfs/"

// mayImport says, for each package, which others of this module it may import.
// Imports point down. Do not change this to make a build pass: a package that
// needs more than it has here is in the wrong place.
var mayImport = map[string]string{
	"kv":               "",
	"cas":              "kv",
	"layers":           "kv cas merge3 internal/beneath",
	"patch":            "layers linediff",
	"apply":            "kv layers merge3 internal/beneath",
	"fs/transport":     "",
	"fs":               "kv cas layers fs/transport",
	"journal":          "kv",
	"targets":          "kv cas journal",
	"memory/convo":     "",
	"memory/valid":     "memory/convo",
	"memory":           "kv memory/convo memory/valid",
	"ledger":           "",
	"verify":           "internal/capture internal/proctree",
	"budget":           "",
	"linediff":         "",
	"hunks":            "linediff",
	"merge3":           "linediff",
	"paths":            "",
	"control":          "",
	"session":          "kv cas layers patch hunks apply fs fs/transport journal memory memory/convo ledger budget control archive paths targets internal/proctree internal/secret",
	"bench":            "control session",
	"cmd/rewindfs":     "bench control hunks sandbox session memory memory/convo memory/valid ledger verify budget paths internal/capture internal/secret",
	"archive":          "layers",
	"internal/fstree":  "",
	"sandbox":          "internal/capture internal/proctree internal/secret",
	"internal/beneath": "",
}

// onlyIn names modules of others that only certain packages may know, and why.
var onlyIn = map[string]struct {
	packages string
	why      string
}{
	"github.com/dgraph-io/badger": {"kv", "its errors and its behaviour on a full disk are dealt with there"},
	"github.com/hanwen/go-fuse":   {"fs fs/transport", "layers must be testable without a mount"},
	"github.com/spf13/cobra":      {"cmd/rewindfs", "what a command does is decided in session"},
	"github.com/spf13/pflag":      {"cmd/rewindfs", "what a command does is decided in session"},
	"github.com/landlock-lsm":     {"sandbox", "what commands are refused is decided there"},
	"github.com/oklog/ulid":       {"journal", "ids are made in one place"},
	"pgregory.net/rapid":          {"internal/fsops internal/twin", "it is for tests"},
	"github.com/stretchr/testify": {"", "tests compare with the standard library"},
	"modernc.org/sqlite":          {"targets", "a process that has a database open twice loses its locks"},
	"golang.org/x/sys/unix":       {"kv cas targets layers archive patch paths apply fs fs/transport ledger verify sandbox session bench cmd/rewindfs internal/beneath internal/fsops internal/fstree internal/mounttest internal/proctree internal/twin", "control and journal need no system calls of their own"},
}

type goPackage struct {
	ImportPath string
	Dir        string
	Doc        string
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,Doc,Imports,GoFiles", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p goPackage
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 8 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}

func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		allowed, known := mayImport[name]
		if !known && len(p.GoFiles) > 0 && !strings.HasPrefix(name, "internal/") && !strings.HasPrefix(name, "tests/") {
			t.Errorf("%s has no place in the order of packages: give it one", name)
			continue
		}
		for _, imp := range p.Imports {
			if rest, ours := strings.CutPrefix(imp, module); ours && known && !slices.Contains(strings.Fields(allowed), rest) {
				t.Errorf("%s may not import %s", name, rest)
			}
			for banned, rule := range onlyIn {
				if (imp == banned || strings.HasPrefix(imp, banned+"/")) && !slices.Contains(strings.Fields(rule.packages), name) {
					t.Errorf("%s imports %s, which only %s may: %s", name, imp, rule.packages, rule.why)
				}
			}
			if name == "control" && strings.Contains(strings.Split(imp, "/")[0], ".") {
				t.Errorf("control imports %s: whoever speaks the protocol should need the standard library only", imp)
			}
		}
	}
}

func TestPackagesAreDocumented(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// Bounds that keep files and functions readable, in lines.
const (
	maxFile     = 500
	maxTestFile = 800
	maxFunc     = 80
)

func TestFilesAndFunctionsStaySmall(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		isTest := strings.HasSuffix(path, "_test.go")
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		limit := maxFile
		if isTest {
			limit = maxTestFile
		}
		if n := set.Position(file.FileEnd).Line; n > limit {
			t.Errorf("%s has %d lines, more than %d: split it", path, n, limit)
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || isTest {
				continue
			}
			if n := set.Position(fn.End()).Line - set.Position(fn.Pos()).Line + 1; n > maxFunc {
				t.Errorf("%s: %s has %d lines, more than %d: split it", path, fn.Name.Name, n, maxFunc)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Only main ends the process, and nothing registers itself.
func TestNoExitsAndNoInits(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl:
					if n.Name.Name == "init" && n.Recv == nil {
						t.Errorf("%s has an init function", path)
					}
					return n.Name.Name != "main" || file.Name.Name != "main"
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && (x.Name == "os" && n.Sel.Name == "Exit" || x.Name == "log" && strings.HasPrefix(n.Sel.Name, "Fatal")) {
						t.Errorf("%s calls %s.%s outside of main", path, x.Name, n.Sel.Name)
					}
				}
				return true
			})
		}
	}
}
