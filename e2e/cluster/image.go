package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// image is a container image with one layer, made from files without a container engine.
type image struct {
	name       string // repository:tag
	entrypoint []string
	user       string
	files      map[string]string // path in the image: file on this machine
	platform   platform          // this machine's if it is empty
	root       string            // the folder with the libraries of that platform; empty for this machine's
}

// epoch is the time of all files in an image, so that the same content has the same digest.
var epoch = time.Unix(0, 0).UTC()

// imageCommand implements `cluster image`.
func imageCommand(arguments []string) error {
	flags := flag.NewFlagSet("cluster image", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "Make an image (OCI layout, one layer) from files, without a container engine. What programs\n"+
			"load is added: the interpreter and the libraries of this machine, or of --root.\n\n"+
			"  cluster image --name REPOSITORY:TAG --out FILE.tar [flags] /PATH/IN/IMAGE=FILE...")
		flags.PrintDefaults()
	}
	made := image{files: map[string]string{}, platform: here()}
	flags.StringVar(&made.name, "name", "", "name of the image, REPOSITORY:TAG")
	flags.StringVar(&made.user, "user", "", "user and group that run it, 2102:2102 (default root)")
	flags.Var(&made.platform, "platform", "what it is for: linux/amd64 or linux/arm64; files for another are refused")
	flags.StringVar(&made.root, "root", "", "the directory with the libraries of that platform (default this machine's)")
	out := flags.String("out", "", "the tar file to write")
	entrypoint := flags.String("entrypoint", "", "what it runs, words separated by spaces")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if made.name == "" || *out == "" || flags.NArg() == 0 {
		flags.Usage()
		return errors.New("image needs --name, --out and a file")
	}
	made.entrypoint = strings.Fields(*entrypoint)
	for _, argument := range flags.Args() {
		inside, source, found := strings.Cut(argument, "=")
		if !found || !path.IsAbs(inside) {
			return fmt.Errorf("%q is not /PATH/IN/IMAGE=FILE", argument)
		}
		made.files[inside] = source
	}
	return made.write(*out)
}

// makeImages makes the images that every node needs.
func (b *bed) makeImages() ([]string, error) {
	images := []image{
		{name: pauseImage, entrypoint: []string{"/cluster", "pause"}, files: map[string]string{"/cluster": b.self}},
		{name: kubeImage, entrypoint: []string{"/kube"}, files: map[string]string{"/kube": b.kube}},
	}
	files := []string{b.file("pause.tar"), b.file("kube.tar")}
	for nth, made := range images {
		if err := made.write(files[nth]); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// manifest describes an image for one platform (manifest.md).
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

// description configures the process that runs, and its user (config.md).
type description struct {
	platform
	Created time.Time `json:"created"`
	Config  running   `json:"config"`
	Rootfs  rootfs    `json:"rootfs"`
}

type running struct {
	User       string `json:",omitempty"`
	Env        []string
	Entrypoint []string
}

type rootfs struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// write makes a tar of an OCI layout that contains only this image.
func (i *image) write(out string) error {
	if i.platform == (platform{}) {
		i.platform = here()
	}
	if err := i.addLibraries(); err != nil {
		return err
	}
	content, err := i.layer()
	if err != nil {
		return err
	}
	made := layout{}
	layer := made.blob(layerType, content)
	described, err := made.object(configType, description{
		platform: i.platform, Created: epoch,
		Config: running{User: i.user, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin"}, Entrypoint: i.entrypoint},
		Rootfs: rootfs{"layers", []string{layer.Digest}},
	})
	if err != nil {
		return err
	}
	listed, err := made.object(manifestType, manifest{2, manifestType, described, []descriptor{layer}})
	if err != nil {
		return err
	}
	listed.Platform = &i.platform
	if err := made.name(i.name, listed); err != nil {
		return err
	}
	return made.write(out)
}

// layer is a tar of the files and of the directories above them.
func (i *image) layer() ([]byte, error) {
	var buffer bytes.Buffer
	archive := tar.NewWriter(&buffer)
	made := map[string]bool{}
	for _, inside := range sortedKeys(i.files) {
		for _, directory := range parents(inside) {
			if made[directory] {
				continue
			}
			made[directory] = true
			header := tar.Header{Typeflag: tar.TypeDir, Name: directory[1:] + "/", Mode: 0o755, ModTime: epoch}
			if err := archive.WriteHeader(&header); err != nil {
				return nil, err
			}
		}
		if err := addFile(archive, inside[1:], i.files[inside]); err != nil {
			return nil, err
		}
	}
	err := archive.Close()
	return buffer.Bytes(), err
}

func addFile(archive *tar.Writer, name, source string) error {
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	status, err := file.Stat()
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if status.Mode()&0o111 != 0 {
		mode = 0o755
	}
	header := tar.Header{Typeflag: tar.TypeReg, Name: name, Size: status.Size(), Mode: mode, ModTime: epoch}
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err = io.Copy(archive, file)
	return err
}

// parents returns the directories above a path, outermost first, without the root.
func parents(inside string) []string {
	var all []string
	for directory := path.Dir(inside); directory != "/"; directory = path.Dir(directory) {
		all = append(all, directory)
	}
	slices.Reverse(all)
	return all
}
