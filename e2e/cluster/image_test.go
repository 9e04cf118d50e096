package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var amd64, arm64 = platform{"linux", "amd64"}, platform{"linux", "arm64"}

// TestImageOfAnotherArchitecture makes an image from the libraries of another platform.
func TestImageOfAnotherArchitecture(t *testing.T) {
	root := t.TempDir()
	put(t, root+"/usr/sbin/tool", program(elf.EM_AARCH64, "/lib/ld-linux-aarch64.so.1", "libfirst.so.1"))
	put(t, root+"/lib/ld-linux-aarch64.so.1", program(elf.EM_AARCH64, ""))
	put(t, root+"/usr/lib/aarch64-linux-gnu/libfirst.so.1", program(elf.EM_AARCH64, "", "libsecond.so.2"))
	put(t, root+"/lib/aarch64-linux-gnu/libsecond.so.2", program(elf.EM_AARCH64, ""))
	out := filepath.Join(t.TempDir(), "tool.tar")
	err := run([]string{"image", "--name", "registry.local/tool:1", "--platform", "linux/arm64", "--root", root,
		"--entrypoint", "/usr/sbin/tool --all", "--user", "1:2", "--out", out, "/usr/sbin/tool=" + root + "/usr/sbin/tool"})
	if err != nil {
		t.Fatal(err)
	}
	made := imageFor(t, out, arm64)
	files := []string{"/lib/aarch64-linux-gnu/libsecond.so.2", "/lib/ld-linux-aarch64.so.1",
		"/usr/lib/aarch64-linux-gnu/libfirst.so.1", "/usr/sbin/tool"}
	if got := sortedKeys(made.files); !slices.Equal(got, files) {
		t.Errorf("the image has %v, not %v", got, files)
	}
	if made.User != "1:2" || !slices.Equal(made.Entrypoint, []string{"/usr/sbin/tool", "--all"}) {
		t.Errorf("%v as %q", made.Entrypoint, made.User)
	}
	made.check(t, arm64)
}

// TestImageRefusesWhatDoesNotFit checks the errors for files that an image cannot contain.
func TestImageRefusesWhatDoesNotFit(t *testing.T) {
	root := t.TempDir()
	put(t, root+"/x86", program(elf.EM_X86_64, ""))
	put(t, root+"/lonely", program(elf.EM_AARCH64, "", "libnowhere.so"))
	put(t, root+"/mixed", program(elf.EM_AARCH64, "", "libx86.so"))
	put(t, root+"/usr/lib/libx86.so", program(elf.EM_X86_64, ""))
	for file, reason := range map[string]string{
		"x86":    "it is for EM_X86_64, and the image for linux/arm64",
		"lonely": "there is no library libnowhere.so for linux/arm64 in " + root,
		"mixed":  "libx86.so: it is for EM_X86_64, and the image for linux/arm64",
	} {
		made := image{name: "a:1", platform: arm64, root: root, files: map[string]string{"/a": root + "/" + file}}
		refused(t, made.write(filepath.Join(t.TempDir(), "a.tar")), reason)
	}
	refused(t, new(platform).Set("linux/sparc"), "linux/amd64 or linux/arm64")
	nameless := image{name: "a", platform: arm64, files: map[string]string{"/a": root + "/lonely"}, root: root}
	put(t, root+"/lib/libnowhere.so", program(elf.EM_AARCH64, ""))
	refused(t, nameless.write(filepath.Join(t.TempDir(), "a.tar")), "is not REPOSITORY:TAG")
}

// TestImageForSeveralPlatforms joins images into one index with a manifest for each platform.
func TestImageForSeveralPlatforms(t *testing.T) {
	first, second := simple(t, "local/a:1", amd64), simple(t, "local/a:1", arm64)
	out := filepath.Join(t.TempDir(), "both.tar")
	if err := run([]string{"index", "--out", out, second, first}); err != nil {
		t.Fatal(err)
	}
	read := layoutOf(t, out)
	var top index
	decode(t, read["index.json"], &top)
	if len(top.Manifests) != 1 || top.Manifests[0].MediaType != indexType {
		t.Fatalf("index.json: %+v", top)
	}
	names := map[string]string{nameKey: "local/a:1", "org.opencontainers.image.ref.name": "1"}
	if !maps.Equal(top.Manifests[0].Annotations, names) {
		t.Errorf("it is named %v", top.Manifests[0].Annotations)
	}
	var listed index
	decode(t, blobOf(t, read, top.Manifests[0]), &listed)
	if listed.MediaType != indexType || listed.SchemaVersion != 2 || len(listed.Manifests) != 2 {
		t.Fatalf("the index: %+v", listed)
	}
	for nth, platform := range []platform{amd64, arm64} {
		if *listed.Manifests[nth].Platform != platform {
			t.Errorf("manifest %d is for %v", nth, listed.Manifests[nth].Platform)
		}
		imageFor(t, out, platform).check(t, platform)
	}

	// A joined image can be joined again, even alone.
	again := filepath.Join(t.TempDir(), "again.tar")
	if err := run([]string{"index", "--out", again, out}); err != nil {
		t.Fatal(err)
	}
	if same, err := os.ReadFile(again); err != nil || !bytes.Equal(same, bytesOf(t, out)) {
		t.Errorf("the same images make another layout: %v", err)
	}
}

// TestImageRefusesToJoin checks the errors for images that do not belong together.
func TestImageRefusesToJoin(t *testing.T) {
	first, second, other := simple(t, "a:1", amd64), simple(t, "a:1", arm64), simple(t, "b:1", arm64)
	_, err := joinImages([]string{first, second, first})
	refused(t, err, first+" is a second image for linux/amd64")
	_, err = joinImages([]string{first, other})
	refused(t, err, other+" is b:1, and the image before it a:1")

	damaged := layoutOf(t, first)
	for name, content := range damaged {
		if strings.HasPrefix(name, "blobs/") && !json.Valid(content) {
			content[len(content)/2] ^= 1
		}
	}
	file := filepath.Join(t.TempDir(), "damaged.tar")
	if err := damaged.write(file); err != nil {
		t.Fatal(err)
	}
	_, err = joinImages([]string{file})
	refused(t, err, "is missing or damaged")
}

// simple makes an image with one program that loads no library.
func simple(t *testing.T, name string, platform platform) string {
	t.Helper()
	folder := t.TempDir()
	put(t, folder+"/program", program(machines[platform.Architecture].elf, ""))
	made := image{name: name, platform: platform, entrypoint: []string{"/program"},
		files: map[string]string{"/program": folder + "/program"}}
	out := filepath.Join(folder, "image.tar")
	if err := made.write(out); err != nil {
		t.Fatal(err)
	}
	return out
}

// unpacked is an image for one platform, parsed by code that is independent of the code that writes images.
type unpacked struct {
	running
	files map[string][]byte
	modes map[string]int64
}

// imageFor reads the part of an image for a platform.
func imageFor(t *testing.T, file string, wanted platform) unpacked {
	t.Helper()
	read := layoutOf(t, file)
	var found *descriptor
	var search func(list []byte)
	search = func(list []byte) {
		var listed index
		decode(t, list, &listed)
		for _, described := range listed.Manifests {
			if described.MediaType == indexType {
				search(blobOf(t, read, described))
			} else if described.Platform != nil && *described.Platform == wanted {
				found = &described
			}
		}
	}
	search(read["index.json"])
	if found == nil {
		t.Fatalf("%s has nothing for %v", file, wanted)
	}
	var listed manifest
	decode(t, blobOf(t, read, *found), &listed)
	var says description
	decode(t, blobOf(t, read, listed.Config), &says)
	if says.platform != wanted {
		t.Errorf("%s: what is listed for %v says that it is for %v", file, wanted, says.platform)
	}
	made := unpacked{says.Config, map[string][]byte{}, map[string]int64{}}
	for nth, layer := range listed.Layers {
		content := blobOf(t, read, layer)
		if says.Rootfs.DiffIDs[nth] != "sha256:"+digest(content) {
			t.Errorf("%s: layer %d is another one than its configuration says", file, nth)
		}
		for archive := tar.NewReader(bytes.NewReader(content)); ; {
			header, err := archive.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if header.Typeflag != tar.TypeReg {
				continue
			}
			if made.files["/"+header.Name], err = io.ReadAll(archive); err != nil {
				t.Fatal(err)
			}
			made.modes["/"+header.Name] = header.Mode
		}
	}
	return made
}

// check expects that the entrypoint exists, that every program is for the platform, and that their libraries
// exist.
func (u unpacked) check(t *testing.T, platform platform) {
	t.Helper()
	if len(u.Entrypoint) == 0 || u.files[u.Entrypoint[0]] == nil {
		t.Errorf("there is no file for the entrypoint %v", u.Entrypoint)
	}
	at := map[string]bool{}
	for name := range u.files {
		at[filepath.Base(name)] = true
	}
	programs := 0
	for name, content := range u.files {
		file, err := elf.NewFile(bytes.NewReader(content))
		if err != nil {
			continue
		}
		programs++
		if file.Machine != machines[platform.Architecture].elf {
			t.Errorf("%s is for %v, in an image for %v", name, file.Machine, platform)
		}
		needed, err := file.ImportedLibraries()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, part := range file.Progs {
			if part.Type == elf.PT_INTERP {
				interpreter, err := io.ReadAll(part.Open())
				if err != nil {
					t.Fatal(err)
				}
				if path := strings.TrimRight(string(interpreter), "\x00"); u.files[path] == nil {
					t.Errorf("%s is loaded by %s, which is not there", name, path)
				}
			}
		}
		for _, library := range needed {
			if !at[library] {
				t.Errorf("%s loads %s, which is not there", name, library)
			}
		}
	}
	if programs == 0 {
		t.Error("there is no program")
	}
}

// program makes an ELF file that names an interpreter and libraries, and has no code.
func program(machine elf.Machine, interpreter string, libraries ...string) []byte {
	names, dynamic := []byte{0}, new(bytes.Buffer)
	for _, library := range libraries {
		entry := []uint64{uint64(elf.DT_NEEDED), uint64(len(names))}
		_ = binary.Write(dynamic, binary.LittleEndian, entry)
		names = append(append(names, library...), 0)
	}
	_ = binary.Write(dynamic, binary.LittleEndian, []uint64{uint64(elf.DT_NULL), 0})
	const header, part, section = 64, 56, 64
	interp := append([]byte(interpreter), 0)
	at := uint64(header + part)
	namesAt := at + uint64(len(interp))
	dynamicAt := namesAt + uint64(len(names))
	sections := []elf.Section64{
		{},
		{Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: uint64(len(names))},
		{Type: uint32(elf.SHT_DYNAMIC), Off: dynamicAt, Size: uint64(dynamic.Len()), Link: 1, Entsize: 16},
	}
	top := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(machine), Version: 1, Ehsize: header,
		Phoff: header, Phentsize: part, Shoff: dynamicAt + uint64(dynamic.Len()), Shentsize: section,
		Shnum: uint16(len(sections)), Shstrndx: 1,
	}
	copy(top.Ident[:], []byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)})
	loaded := elf.Prog64{Type: uint32(elf.PT_NULL)}
	top.Phnum = 1
	if interpreter != "" {
		loaded = elf.Prog64{Type: uint32(elf.PT_INTERP), Off: at, Filesz: uint64(len(interp))}
	}
	file := new(bytes.Buffer)
	for _, piece := range []any{top, loaded, interp, names, dynamic.Bytes(), sections} {
		_ = binary.Write(file, binary.LittleEndian, piece)
	}
	return file.Bytes()
}

func put(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func layoutOf(t *testing.T, file string) layout {
	t.Helper()
	read, err := readLayout(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(read["oci-layout"]) != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("%s: oci-layout is %q", file, read["oci-layout"])
	}
	return read
}

// blobOf returns the blob that a descriptor names, after checking its digest and size.
func blobOf(t *testing.T, from layout, described descriptor) []byte {
	t.Helper()
	content := from["blobs/"+strings.Replace(described.Digest, ":", "/", 1)]
	if int64(len(content)) != described.Size || "sha256:"+digest(content) != described.Digest {
		t.Fatalf("%+v: %d bytes of %s", described, len(content), digest(content))
	}
	return content
}

func decode(t *testing.T, content []byte, value any) {
	t.Helper()
	if err := json.Unmarshal(content, value); err != nil {
		t.Fatal(err)
	}
}

func bytesOf(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func refused(t *testing.T, err error, reason string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), reason) {
		t.Errorf("%v does not say %q", err, reason)
	}
}
