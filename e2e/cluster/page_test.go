package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// step is an instruction of a page: to write a file, or to type a command. The rules are those of cli/tests/docs/page.rs: a block
// whose first line is `# NAME.EXTENSION` is a file; a console block has commands after "$ ", continued after "> ", and their
// output.
type step struct {
	line    int
	file    string // the file's name, and its text
	text    string
	command string
	shown   []string
}

// fileName matches the first line of a block that is a file.
var fileName = regexp.MustCompile(`^# ([A-Za-z0-9._-]+\.[A-Za-z0-9._-]+)$`)

// steps reads a page.
func steps(page string) ([]step, error) {
	var all []step
	lines := strings.Split(page, "\n")
	for at := 0; at < len(lines); at++ {
		language, found := strings.CutPrefix(lines[at], "```")
		if !found {
			continue
		}
		begin := at + 1
		for at = begin; at < len(lines) && lines[at] != "```"; at++ {
		}
		block := lines[begin:at]
		if language == "console" {
			commands, err := commandsOf(block, begin+1)
			if err != nil {
				return nil, err
			}
			all = append(all, commands...)
		} else if len(block) > 0 {
			if name := fileName.FindStringSubmatch(block[0]); name != nil {
				all = append(all, step{line: begin + 1, file: name[1], text: strings.Join(block, "\n") + "\n"})
			}
		}
	}
	return all, nil
}

func commandsOf(block []string, first int) ([]step, error) {
	var all []step
	for nth, line := range block {
		if command, found := strings.CutPrefix(line, "$ "); found {
			all = append(all, step{line: first + nth, command: command})
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("line %d: output before any command: %s", first+nth, line)
		}
		last := &all[len(all)-1]
		if more, found := strings.CutPrefix(line, "> "); found && last.shown == nil {
			last.command += "\n" + more
		} else {
			last.shown = append(last.shown, line)
		}
	}
	return all, nil
}

// shows returns whether printed matches the output on the page: "..." matches any text within a line, or any lines if it is a line
// itself; ~90 matches a number from 45 to 180; all white space counts as one space.
func shows(shown []string, printed string) bool {
	pattern := "(?s)^"
	for _, line := range shown {
		line = oneSpace(line)
		if line == "..." {
			pattern += `(?:[^\n]*\n)*`
			continue
		}
		parts := strings.Split(line, "...")
		for nth, part := range parts {
			parts[nth] = about.ReplaceAllString(regexp.QuoteMeta(part), `(\d+)`)
		}
		pattern += strings.Join(parts, `[^\n]*`) + `\n`
	}
	var text string
	for _, line := range strings.Split(strings.TrimSuffix(printed, "\n"), "\n") {
		text += oneSpace(line) + "\n"
	}
	found := regexp.MustCompile(pattern + "$").FindStringSubmatch(text)
	if found == nil {
		return false
	}
	for nth, wanted := range about.FindAllStringSubmatch(strings.Join(shown, "\n"), -1) {
		expected, _ := strconv.Atoi(wanted[1])
		if seen, err := strconv.Atoi(found[nth+1]); err != nil || seen < expected/2 || seen > expected*2 {
			return false
		}
	}
	return true
}

// about matches an approximate number on the page.
var about = regexp.MustCompile(`~(\d+)`)

func oneSpace(line string) string { return strings.Join(strings.Fields(line), " ") }

func TestPageIsFilesAndCommands(t *testing.T) {
	page := "# Title\n```yaml\n# a.yaml\nkind: A\n```\n```sh\n# not a file\nkubectl\n```\n" +
		"```console\n$ one \\\n> two\n$ three\n  4 rows\n> kept\n```\n"
	found, err := steps(page)
	if err != nil {
		t.Fatal(err)
	}
	expected := []step{
		{line: 3, file: "a.yaml", text: "# a.yaml\nkind: A\n"},
		{line: 11, command: "one \\\ntwo"},
		{line: 13, command: "three", shown: []string{"  4 rows", "> kept"}},
	}
	if fmt.Sprint(found) != fmt.Sprint(expected) {
		t.Errorf("%+v\nis not\n%+v", found, expected)
	}
	if _, err := steps("```console\nanswer\n$ question\n```\n"); err == nil {
		t.Error("output before any command is accepted")
	}
}

func TestOutputHasToBeWhatThePageShows(t *testing.T) {
	for _, row := range []struct {
		shown, printed string
		expected       bool
	}{
		{"up (process ...), 3 of 3", "up (process 17),  3 of 3\n", true},
		{"up (process ...), 3 of 3", "up (process 17), 2 of 3\n", false},
		{"...\nb\n...", "a\na\nb\n", true},
		{"...\nb\n...", "a\nbb\n", false},
		{"   ~90 v1", "45 v1", true},
		{"~90 v1", "180 v1", true},
		{"~90 v1", "44 v1", false},
		{"~90 v1", "v1", false},
		{"a", "a\nb", false},
		{"a\nb", "a", false},
		{"a", "", false},
		{"1.0 (x)", "1.0 (x)", true},
		{"1.0", "110", false},
	} {
		if shows(strings.Split(row.shown, "\n"), row.printed) != row.expected {
			t.Errorf("%q shows %q: expected %t", row.shown, row.printed, row.expected)
		}
	}
}
