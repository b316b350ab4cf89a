package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/rewindfs/rewindfs/control"
	"github.com/rewindfs/rewindfs/memory"
	"github.com/rewindfs/rewindfs/memory/convo"
)

// formatHelp names the formats of conversations.
const formatHelp = `A conversation is a JSON array of messages, or JSON lines. Its format is told by its shape, or said with --format:
openai-chat, openai-responses, anthropic, gemini, langchain, mistral, ollama, claude-code-jsonl, codex-rollout.
`

var formats = []string{
	string(convo.OpenAIChat), string(convo.Responses), string(convo.Anthropic), string(convo.Gemini), string(convo.LangChain),
	string(convo.Mistral), string(convo.Ollama), string(convo.ClaudeCode), string(convo.Codex),
}

// tooLarge is what no conversation may be, and so nothing that was read.
type tooLarge struct{ name string }

func (e *tooLarge) Error() string {
	return fmt.Sprintf("%s has more than %s, the most that is read", e.name, size(convo.MaxSize))
}

// inputName is how to speak of an input.
func inputName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return show(name)
}

// readInput is readAll that ends with ctx: a pipe may never say anything, and opening one waits, too.
func (a *app) readInput(ctx context.Context, name string) ([]byte, error) {
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := a.readAll(name)
		done <- result{b, err}
	}()
	select {
	case r := <-done:
		return r.b, r.err
	case <-ctx.Done(): // whoever still waits for the pipe ends with the program
		return nil, context.Cause(ctx)
	}
}

// readAll reads a file, or standard input when name is "-", but no more than a conversation may have.
func (a *app) readAll(name string) ([]byte, error) {
	in, what := a.in, inputName(name)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() && fi.Size() > convo.MaxSize {
			return nil, &tooLarge{what}
		}
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, convo.MaxSize+1))
	switch {
	case err != nil:
		return nil, err // names what could not be read
	case len(b) > convo.MaxSize:
		return nil, &tooLarge{what}
	}
	return b, nil
}

// inputError gives an error of readInput its exit code.
func inputError(err error) error {
	var big *tooLarge
	switch {
	case errors.As(err, &big):
		return usagef("%w", err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EISDIR):
		return failf(exitPath, "%w", err)
	}
	return failf(exitFailure, "%w", err)
}

// messagesArg is what was said with --messages: a file with the conversation of a thread.
type messagesArg struct{ thread, file string }

// messagesArgs takes arguments of the form [THREAD=]FILE apart.
func messagesArgs(said []string) ([]messagesArg, error) {
	var out []messagesArg
	have, stdin := map[string]bool{}, false
	for _, s := range said {
		m := messagesArg{memory.MainThread, s}
		if thread, file, ok := strings.Cut(s, "="); ok && !strings.Contains(thread, "/") {
			m = messagesArg{thread, file}
		}
		switch {
		case m.thread == "" || m.file == "":
			return nil, usagef("--messages %s: write it as FILE or THREAD=FILE (a file with a = in its name as ./NAME)", show(s))
		case have[m.thread]:
			return nil, usagef("--messages gives thread %s twice", show(m.thread))
		case m.file == "-" && stdin:
			return nil, usagef("--messages: standard input can be read once only")
		}
		have[m.thread], stdin = true, stdin || m.file == "-"
		out = append(out, m)
	}
	return out, nil
}

// staged is conversations that are in the store, for the request that is to name them.
type staged struct {
	threads  map[string]control.Thread
	missing  []string // threads whose conversation could not be read
	warnings []string // and why
}

// stage reads conversations and puts them into the store. One that is read and is no
// conversation is an error.
func (a *app) stage(ctx context.Context, c *control.Client, said []messagesArg, format string) (*staged, error) {
	out := &staged{warnings: []string{}}
	read := make([][]byte, len(said))
	for i, m := range said {
		b, err := a.readInput(ctx, m.file)
		var big *tooLarge
		switch {
		case ctx.Err() != nil:
			return nil, err
		case errors.As(err, &big):
			return nil, inputError(err)
		case err != nil:
			out.missing = append(out.missing, m.thread)
			out.warnings = append(out.warnings, fmt.Sprintf("the conversation%s is not in the checkpoint: %v", ofThread(m.thread), err))
		default:
			read[i] = b
		}
	}
	for i, m := range said {
		if read[i] == nil {
			continue
		}
		t, err := c.PutMemory(ctx, m.thread, format, true, bytes.NewReader(read[i]))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", inputName(m.file), err)
		}
		if out.threads == nil {
			out.threads = map[string]control.Thread{}
		}
		out.threads[m.thread] = *t
	}
	for _, text := range out.warnings {
		a.warn("%s", text)
	}
	return out, nil
}
