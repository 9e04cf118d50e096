package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// image is a container image of one layer, made from files, without a container engine.
type image struct {
	name       string // repository:tag
	entrypoint []string
	user       string
	files      map[string]string // path in the image: file of this machine
}

// epoch is the time of everything in an image, so that the same content gives the same digest.
var epoch = time.Unix(0, 0).UTC()

// imageCommand is `cluster image`.
func imageCommand(arguments []string) error {
	flags := flag.NewFlagSet("cluster image", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "Make an image (OCI layout, one layer) from files, without a container engine. What programs\n"+
			"load is added: the interpreter and the libraries of this machine.\n\n"+
			"  cluster image --name REPOSITORY:TAG --out FILE.tar [flags] /PATH/IN/IMAGE=FILE...")
		flags.PrintDefaults()
	}
	made := image{files: map[string]string{}}
	flags.StringVar(&made.name, "name", "", "name of the image, REPOSITORY:TAG")
	flags.StringVar(&made.user, "user", "", "user and group that run it, 2102:2102 (default root)")
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

// descriptor names a blob (OCI image specification, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// write makes a tar of an OCI layout with this one image.
func (i *image) write(out string) error {
	repository, tag, found := strings.Cut(path.Base(i.name), ":")
	if !found || repository == "" {
		return fmt.Errorf("%q is not REPOSITORY:TAG", i.name)
	}
	if err := i.addLibraries(); err != nil {
		return err
	}
	layer, err := i.layer()
	if err != nil {
		return err
	}
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	blob := func(mediaType string, content []byte) descriptor {
		digest := digest(content)
		files["blobs/sha256/"+digest] = content
		return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: int64(len(content))}
	}
	object := func(mediaType string, value any) (descriptor, error) {
		content, err := json.Marshal(value)
		return blob(mediaType, content), err
	}
	settings := map[string]any{"Entrypoint": i.entrypoint, "Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}}
	if i.user != "" {
		settings["User"] = i.user
	}
	described := blob("application/vnd.oci.image.layer.v1.tar", layer)
	config, err := object("application/vnd.oci.image.config.v1+json", map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": epoch, "config": settings,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{described.Digest}},
	})
	if err != nil {
		return err
	}
	manifest, err := object("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []descriptor{described},
	})
	if err != nil {
		return err
	}
	manifest.Platform = map[string]string{"architecture": runtime.GOARCH, "os": "linux"}
	manifest.Annotations = map[string]string{
		"io.containerd.image.name": i.name, "org.opencontainers.image.ref.name": tag,
	}
	if files["index.json"], err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []descriptor{manifest},
	}); err != nil {
		return err
	}
	return writeTar(out, files)
}

// layer is the tar of the files and of the directories above them.
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

// parents gives the directories above a path, outermost first, without the root.
func parents(inside string) []string {
	var all []string
	for directory := path.Dir(inside); directory != "/"; directory = path.Dir(directory) {
		all = append(all, directory)
	}
	slices.Reverse(all)
	return all
}

func writeTar(out string, files map[string][]byte) error {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(file)
	for _, name := range sortedKeys(files) {
		header := tar.Header{Name: name, Size: int64(len(files[name])), Mode: 0o644, ModTime: epoch}
		if err := archive.WriteHeader(&header); err != nil {
			return errors.Join(err, file.Close())
		}
		if _, err := archive.Write(files[name]); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return errors.Join(archive.Close(), file.Close())
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func sortedKeys[V any](values map[string]V) []string {
	keys := make([]string, 0, len(values))
	for key := range values {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
