package main

import (
	"archive/tar"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// Media types of the OCI image specification.
const (
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	configType   = "application/vnd.oci.image.config.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

// nameKey is the annotation in which containerd reads an image's name.
const nameKey = "io.containerd.image.name"

// layout is an OCI layout with one image: the files of its tar, by name.
type layout map[string][]byte

// descriptor identifies a blob (OCI image specification, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// index is a list of manifests or of other indexes (image-index.md).
type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

func indexOf(manifests ...descriptor) index { return index{2, indexType, manifests} }

// indexCommand implements `cluster index`.
func indexCommand(arguments []string) error {
	flags := flag.NewFlagSet("cluster index", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "Join images of one name, each for another platform, to one that has them all.\n\n"+
			"  cluster index --out FILE.tar IMAGE.tar...")
		flags.PrintDefaults()
	}
	out := flags.String("out", "", "the tar file to write")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *out == "" || flags.NArg() == 0 {
		flags.Usage()
		return errors.New("index needs --out and an image")
	}
	joined, err := joinImages(flags.Args())
	if err != nil {
		return err
	}
	return joined.write(*out)
}

// joinImages joins images for one or several platforms each into one layout.
func joinImages(sources []string) (layout, error) {
	joined := layout{}
	var name string
	var manifests []descriptor
	for _, source := range sources {
		read, err := readLayout(source)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		found, for_, err := read.image()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		if name != "" && found != name {
			return nil, fmt.Errorf("%s is %s, and the image before it %s", source, found, name)
		}
		name = found
		for _, manifest := range for_ {
			if manifest.Platform == nil {
				return nil, fmt.Errorf("%s does not say which platform it is for", source)
			}
			manifest.Annotations = nil
			if slices.ContainsFunc(manifests, func(other descriptor) bool { return *other.Platform == *manifest.Platform }) {
				return nil, fmt.Errorf("%s is a second image for %v", source, manifest.Platform)
			}
			manifests = append(manifests, manifest)
		}
		for file, content := range read {
			if strings.HasPrefix(file, "blobs/") {
				joined[file] = content
			}
		}
	}
	slices.SortFunc(manifests, func(a, b descriptor) int { return cmp.Compare(a.Platform.String(), b.Platform.String()) })
	listed, err := joined.object(indexType, indexOf(manifests...))
	if err != nil {
		return nil, err
	}
	return joined, joined.name(name, listed)
}

// image returns the name of the layout's image and its manifests, one for each platform. It checks
// that the blobs that they name are complete and unchanged.
func (l layout) image() (string, []descriptor, error) {
	var top index
	if err := json.Unmarshal(l["index.json"], &top); err != nil {
		return "", nil, fmt.Errorf("index.json: %w", err)
	}
	if len(top.Manifests) != 1 {
		return "", nil, fmt.Errorf("index.json has %d images, and one is wanted", len(top.Manifests))
	}
	one := top.Manifests[0]
	manifests := []descriptor{one}
	if one.MediaType == indexType {
		var listed index
		if err := l.read(one, &listed); err != nil {
			return "", nil, err
		}
		manifests = listed.Manifests
	}
	for _, described := range manifests {
		var named manifest
		if err := l.read(described, &named); err != nil {
			return "", nil, err
		}
		for _, part := range append(named.Layers, named.Config) {
			if _, err := l.open(part); err != nil {
				return "", nil, err
			}
		}
	}
	return one.Annotations[nameKey], manifests, nil
}

// name makes a manifest or index the only image of the layout.
func (l layout) name(name string, described descriptor) error {
	repository, tag, found := strings.Cut(path.Base(name), ":")
	if !found || repository == "" {
		return fmt.Errorf("%q is not REPOSITORY:TAG", name)
	}
	described.Annotations = map[string]string{nameKey: name, "org.opencontainers.image.ref.name": tag}
	content, err := json.Marshal(indexOf(described))
	l["index.json"] = content
	l["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	return err
}

// blob adds content and returns its descriptor.
func (l layout) blob(mediaType string, content []byte) descriptor {
	digest := digest(content)
	l["blobs/sha256/"+digest] = content
	return descriptor{MediaType: mediaType, Digest: "sha256:" + digest, Size: int64(len(content))}
}

func (l layout) object(mediaType string, value any) (descriptor, error) {
	content, err := json.Marshal(value)
	return l.blob(mediaType, content), err
}

// open returns the content that a descriptor identifies.
func (l layout) open(described descriptor) ([]byte, error) {
	hash, _ := strings.CutPrefix(described.Digest, "sha256:")
	content, found := l["blobs/sha256/"+hash]
	if !found || int64(len(content)) != described.Size || digest(content) != hash {
		return nil, fmt.Errorf("%s is missing or damaged", described.Digest)
	}
	return content, nil
}

func (l layout) read(described descriptor, value any) error {
	content, err := l.open(described)
	if err != nil {
		return err
	}
	return json.Unmarshal(content, value)
}

func (l layout) write(out string) error {
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(file)
	for _, name := range sortedKeys(l) {
		header := tar.Header{Name: name, Size: int64(len(l[name])), Mode: 0o644, ModTime: epoch}
		if err := archive.WriteHeader(&header); err != nil {
			return errors.Join(err, file.Close())
		}
		if _, err := archive.Write(l[name]); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return errors.Join(archive.Close(), file.Close())
}

func readLayout(source string) (layout, error) {
	file, err := os.Open(source)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	read := layout{}
	for archive := tar.NewReader(file); ; {
		header, err := archive.Next()
		if err == io.EOF {
			return read, nil
		}
		if err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if read[path.Clean(header.Name)], err = io.ReadAll(archive); err != nil {
			return nil, err
		}
	}
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
