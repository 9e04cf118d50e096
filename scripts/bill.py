#!/usr/bin/env python3
"""Lists the packages in a program of Leno, as Cargo resolves them. Prints

    bill.py sbom TARGET PROGRAM                       its bill of materials, in CycloneDX 1.6
    bill.py image TARGET NAME PROGRAM... [-- FILE...]  the bill of materials of an image with these programs and files of
                                                      Debian packages
    bill.py audit TARGET PROGRAM                      its packages in the format of the section .dep-v0, which
                                                      `cargo audit bin`, Trivy and Grype read
    bill.py licences TARGET PROGRAM...                the licences of all packages in these programs, with their texts

The same sources yield the same bytes, because the time of a bill is SOURCE_DATE_EPOCH."""

import json
import os
import re
import subprocess
import sys
import uuid
import zlib
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

# Debian's static libraries with which programs that use libbpf are linked, each with the package that contains its
# licence.
OF_LIBBPF = {"libelf-dev": "libelf1", "zlib1g-dev": "zlib1g", "libzstd-dev": "libzstd1"}
# The libraries with which every program is linked.
OF_ALL = {"libc6-dev": "libc6"}
# The programs that load libraries at run time.
DYNAMIC = {"leno-agent"}
TEXTS = re.compile(r"(LICEN[SC]E|COPYING|COPYRIGHT|NOTICE|UNLICENSE)", re.IGNORECASE)
SPEC = re.compile(r"^(\S+) v(\S+)")


def cargo(*arguments):
    command = [os.environ.get("CARGO", "cargo"), *arguments, "--locked"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def fips(*programs):
    """The arguments with which FIPS=1 adds aws-lc's FIPS module to these programs (scripts/programs.sh)."""
    having = [one for one in programs if one in ("leno", "leno-proxy", "leno-controller")] if os.environ.get("FIPS") == "1" else []
    return [argument for program in having for argument in ("--features", f"{program}/fips")]


@cache
def metadata(target):
    features = fips("leno", "leno-proxy", "leno-controller")
    return json.loads(cargo("metadata", "--format-version=1", "--filter-platform", target, *features))


@cache
def checksums():
    entry = re.compile(r'name = "(.*)"\nversion = "(.*)"\n(?:source = .*\n)?(?:checksum = "(.*)")?')
    lock = Path("Cargo.lock").read_text().split("[[package]]\n")[1:]
    return {(name, version): checksum for name, version, checksum in (entry.match(one).groups() for one in lock)}


def packages(program, target):
    """The packages of a program by their names and versions, including the program itself."""
    tree = cargo("tree", "--package", program, "--edges=normal", "--target", target, "--prefix=none", *fips(program))
    wanted = {SPEC.match(line).groups() for line in tree.splitlines() if SPEC.match(line)}
    known = {(one["name"], one["version"]): one for one in metadata(target)["packages"]}
    return {key: known[key] for key in sorted(wanted)}


def edges(all_packages, target):
    """The dependencies of each of these packages, as far as they are among these packages."""
    names = {one["id"]: key for key, one in all_packages.items()}
    nodes = {node["id"]: node for node in metadata(target)["resolve"]["nodes"]}

    def is_normal(dependency):
        return any(kind["kind"] is None for kind in dependency["dep_kinds"])

    def of(key):
        dependencies = nodes[all_packages[key]["id"]]["deps"]
        return sorted(names[one["pkg"]] for one in dependencies if is_normal(one) and one["pkg"] in names)

    return {key: of(key) for key in all_packages}


def debian(program, all_packages):
    """Debian's libraries in a program, with their versions if this machine has the packages."""
    if program in DYNAMIC:
        return {}
    has_libbpf = any(name == "libbpf-sys" for name, _ in all_packages)
    libraries = OF_ALL | (OF_LIBBPF if has_libbpf else {})
    return {name: version_of(name) for name in libraries}


def version_of(package):
    query = ["dpkg-query", "--show", "--showformat=${Version}", package]
    try:
        return subprocess.run(query, check=True, capture_output=True, text=True).stdout or None
    except (OSError, subprocess.CalledProcessError):
        return None


def purl(key):
    return "pkg:cargo/{}@{}".format(*key)


def component(key, package):
    """A package as a component in CycloneDX."""
    found = {"type": "library", "bom-ref": purl(key), "name": key[0], "version": key[1], "purl": purl(key)}
    if package["license"]:
        found["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum := checksums().get(key):
        found["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if package["repository"]:
        found["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return found


def root(program, all_packages):
    return next(key for key in all_packages if key[0] == program)


def of_debian(name, version):
    reference = f"pkg:deb/debian/{name}" + (f"@{version}" if version else "")
    found = {"type": "library", "bom-ref": reference, "name": name, "purl": reference}
    return found | ({"version": version} if version else {})


def bill_of(subject, target, components, dependencies):
    """A bill of materials. Its parts are sorted, so that the same parts yield the same bytes."""
    time = datetime.fromtimestamp(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), timezone.utc)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": subject,
            "properties": [{"name": "target", "value": target}],
        },
        "components": sorted(components, key=lambda one: one["bom-ref"]),
        "dependencies": [{"ref": ref, "dependsOn": sorted(of)} for ref, of in sorted(dependencies.items())],
    }
    content = json.dumps(bill, sort_keys=True)
    bill["serialNumber"] = "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_URL, content))
    return bill


def parts(program, target):
    """A program as a component, the components in it, and the dependencies between them."""
    all_packages = packages(program, target)
    own = root(program, all_packages)
    found = {purl(key): component(key, one) for key, one in all_packages.items() if key != own}
    dependencies = {purl(key): {purl(one) for one in of} for key, of in edges(all_packages, target).items()}
    for name, version in debian(program, all_packages).items():
        one = of_debian(name, version)
        found[one["bom-ref"]] = one
        dependencies[purl(own)].add(one["bom-ref"])
    return component(own, all_packages[own]) | {"type": "application"}, found, dependencies


def sbom(program, target):
    subject, found, dependencies = parts(program, target)
    print(json.dumps(bill_of(subject, target, found.values(), dependencies), indent=1, sort_keys=True))


def image(name, target, programs, files):
    found, dependencies = {}, {}
    for program in programs:
        subject, of_program, edges_of_program = parts(program, target)
        found |= of_program | {subject["bom-ref"]: subject}
        dependencies |= edges_of_program
    for package in sorted(packages_of_files(files)):
        one = of_debian(package, version_of(package))
        found[one["bom-ref"]] = one
    subject = {"type": "container", "bom-ref": f"image:{name}", "name": name}
    print(json.dumps(bill_of(subject, target, found.values(), dependencies), indent=1, sort_keys=True))


def packages_of_files(files):
    """Debian's packages that contain these files, and the libraries that the files load."""
    wanted = {str(Path(file).resolve()) for file in files}
    for file in sorted(wanted):
        loaded = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
        wanted |= {str(Path(path).resolve()) for path in re.findall(r"(/\S+) \(0x", loaded)}
    found = set()
    for file in wanted:
        # Debian has merged /lib into /usr/lib, and its lists of files may contain either path.
        for path in {file, file.removeprefix("/usr")}:
            owners = subprocess.run(["dpkg-query", "--search", path], capture_output=True, text=True).stdout
            found |= {line.split(":")[0] for line in owners.splitlines()}
    return found


def audit(program, target):
    all_packages = packages(program, target)
    dependencies = edges(all_packages, target)
    positions = {key: position for position, key in enumerate(all_packages)}

    def source(package):
        return "crates.io" if (package["source"] or "").startswith("registry+") else "local"

    def entry(key, package):
        found = {"name": key[0], "version": key[1], "source": source(package)}
        if dependencies[key]:
            found["dependencies"] = [positions[one] for one in dependencies[key]]
        if key == root(program, all_packages):
            found["root"] = True
        return found

    listed = {"packages": [entry(key, one) for key, one in all_packages.items()]}
    sys.stdout.buffer.write(zlib.compress(json.dumps(listed, separators=(",", ":")).encode(), 9))


def texts(package):
    """The licence files of a package: those beside its manifest, and those of C libraries in it."""
    folder = Path(package["manifest_path"]).parent
    found = {folder / package["license_file"]} if package.get("license_file") else set()
    for pattern in ("*", "*/*"):
        found |= {path for path in folder.glob(pattern) if TEXTS.match(path.name)}
    return sorted(path for path in found if path.is_file() and path.suffix not in (".rs", ".go", ".py", ".sh"))


def licences(target, programs):
    known, users = {}, {}
    for program in programs:
        all_packages = packages(program, target)
        known |= {key: one for key, one in all_packages.items() if one["source"]}
        for name in debian(program, all_packages):
            users.setdefault(name, []).append(program)
    print("The code of other projects in the programs of Leno, and its licences. Leno's own licence is in LICENSE.\n")
    by_text = {}
    for key, package in sorted(known.items()):
        print("{} {}: {}".format(*key, package["license"] or "see its text"))
        for path in texts(package):
            text = path.read_text(errors="replace").strip()
            by_text.setdefault(text, []).append("{} {} ({})".format(*key, path.name))
    for name in sorted(users):
        print(f"{name} of Debian {version_of(name) or ''}: linked into {', '.join(users[name])}")
        path = Path("/usr/share/doc") / (OF_ALL | OF_LIBBPF)[name] / "copyright"
        if path.is_file():
            by_text.setdefault(path.read_text(errors="replace").strip(), []).append(f"{name} (copyright)")
    for text, names in by_text.items():
        print(f"\n{'=' * 100}\n" + "\n".join(names) + f"\n{'-' * 100}\n{text}")


def main(arguments):
    os.chdir(Path(__file__).parent.parent)
    files = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, files = arguments[:at], arguments[at + 1 :]
    match arguments:
        case ["sbom", target, program]:
            sbom(program, target)
        case ["image", target, name, *programs] if programs:
            image(name, target, programs, files)
        case ["audit", target, program]:
            audit(program, target)
        case ["licences", target, *programs] if programs:
            licences(target, programs)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
