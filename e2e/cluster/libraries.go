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

// addLibraries adds the interpreter and the libraries of an image's dynamically linked programs, at
// the paths that the interpreter searches.
func (i *image) addLibraries() error {
	var open []string
	for _, source := range i.files {
		open = append(open, source)
	}
	for len(open) > 0 {
		source := open[0]
		open = open[1:]
		needed, err := i.loadedBy(source)
		if err != nil {
			return fmt.Errorf("%s: %w", source, err)
		}
		for _, library := range needed {
			if _, known := i.files[library]; !known {
				i.files[library] = i.source(library)
				open = append(open, i.files[library])
			}
		}
	}
	return nil
}

// loadedBy returns the interpreter and the libraries that a file names; nil if it is not an ELF
// file. A file for another platform than the image's is an error.
func (i *image) loadedBy(source string) ([]string, error) {
	file, err := elf.Open(source)
	var malformed *elf.FormatError
	if errors.As(err, &malformed) || errors.Is(err, io.EOF) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if file.Machine != machines[i.platform.Architecture].elf {
		return nil, fmt.Errorf("it is for %v, and the image for %v", file.Machine, i.platform)
	}
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
		library, err := i.find(name)
		if err != nil {
			return nil, err
		}
		needed = append(needed, library)
	}
	return needed, nil
}

// find searches for a library in the folders that Debian's interpreter searches, and returns its
// path in the image.
func (i *image) find(library string) (string, error) {
	triple := machines[i.platform.Architecture].triple
	for _, folder := range []string{"/lib/" + triple, "/usr/lib/" + triple, "/lib64", "/lib", "/usr/lib"} {
		inside := filepath.Join(folder, library)
		if _, err := os.Stat(i.source(inside)); err == nil {
			return inside, nil
		}
	}
	return "", fmt.Errorf("there is no library %s for %v in %s", library, i.platform, i.source("/"))
}

// source is the file on this machine with a library of the image.
func (i *image) source(inside string) string { return i.root + inside }
