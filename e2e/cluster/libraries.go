package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// addLibraries adds to an image what its dynamically linked programs load: their interpreter and
// their libraries, at the places that the interpreter searches.
func (i *image) addLibraries() error {
	var open []string
	for _, source := range i.files {
		open = append(open, source)
	}
	for len(open) > 0 {
		source := open[0]
		open = open[1:]
		needed, err := loadedBy(source)
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		for _, library := range needed {
			if _, known := i.files[library]; !known {
				i.files[library] = library
				open = append(open, library)
			}
		}
	}
	return nil
}

// loadedBy gives the interpreter and the libraries that a file asks for; none where it is no program.
func loadedBy(source string) ([]string, error) {
	file, err := elf.Open(source)
	var malformed *elf.FormatError
	if errors.As(err, &malformed) || errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var needed []string
	for _, part := range file.Progs {
		if part.Type == elf.PT_INTERP {
			interpreter := make([]byte, part.Filesz)
			if _, err := part.ReadAt(interpreter, 0); err != nil {
				return nil, err
			}
			needed = append(needed, strings.TrimRight(string(interpreter), "\x00"))
		}
	}
	names, err := file.ImportedLibraries()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		library, err := find(name)
		if err != nil {
			return nil, err
		}
		needed = append(needed, library)
	}
	return needed, nil
}

// find looks for a library where Debian's interpreter does.
func find(library string) (string, error) {
	for _, pattern := range []string{"/lib/*-linux-gnu", "/usr/lib/*-linux-gnu", "/lib64", "/lib", "/usr/lib"} {
		found, err := filepath.Glob(filepath.Join(pattern, library))
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			if _, err := os.Stat(found[0]); err == nil {
				return found[0], nil
			}
		}
	}
	return "", fmt.Errorf("there is no library %s on this machine", library)
}
