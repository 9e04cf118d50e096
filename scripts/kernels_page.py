"""Makes docs/kernels.md from the consoles of the kernels (scripts/kernels.sh).

    kernels_page.py [--write PAGE] FOLDER...

Each folder belongs to one kernel and contains `console`, and `release` with the release and the package's version.
Without --write the page is printed. Exits with 1 if a test failed, or if the tests of a kernel did not end.
"""

import json
import re
import sys
from pathlib import Path

GROUPS = {
    "loader": "layouts, decisions, each program attached",
    "capture": "capture, by eBPF and nftables",
    "flows": "flows",
}

HEAD = """\
# Kernels

Written by `make test-kernels`, which boots Debian's kernels in an emulator and runs the kernel tests in them. The page
contains only results of these runs. Each kernel program was loaded and attached separately, as `leno check --pre --ebpf`
does on any machine. Then the tests ran that capture real connections and account for them. All kernels have only control
groups of version 2.
"""


def sections(console):
    """The parts of a console: (name, lines, exit code)."""
    current = None
    for line in console.splitlines():
        line = line.rstrip()
        if line.startswith("@@end "):
            if current:
                yield current[0], current[1], int(line.split()[1])
            current = None
        elif line.startswith("@@"):
            current = (line[2:], [])
        elif current:
            current[1].append(line)


def read(folder):
    release, version = (folder / "release").read_text().split()
    kernel = {"release": release, "version": version, "suite": folder.name, "tests": {}}
    console = (folder / "console").read_text(errors="replace").replace("\r", "")
    for name, lines, _code in sections(console):
        if name == "preflight":
            kernel["preflight"] = json.loads(next(line for line in lines if line.startswith("{")))
        elif name.startswith("tests "):
            text = "\n".join(lines)
            # Takes the last result, because a test may run others in a separate process.
            results = re.findall(r"test result: .* (\d+) passed; (\d+) failed", text)
            failed = sorted(set(re.findall(r"^test (\S+) .*FAILED$", text, re.M)))
            kernel["tests"][name[6:]] = {
                "passed": int(results[-1][0]) if results else None,
                "skipped": re.findall(r"^---- (\S+) stdout ----\nskipped: (.*)$", text, re.M),
                "failed": failed,
            }
    return kernel


def short(kernel):
    return re.match(r"\d+\.\d+", kernel["release"])[0]


def is_program(finding):
    return "(leno_" in finding["subject"]


def row(cells):
    return "| " + " | ".join(cells) + " |\n"


def table(head, rows):
    return row(head) + "|" + "---|" * len(head) + "\n" + "".join(row(cells) for cells in rows)


def kernels_table(kernels):
    rows = []
    for kernel in kernels:
        capture = finding(kernel, "capture")
        cells = [kernel["release"], f"{kernel['version']} ({kernel['suite']})", capture["text"].split(":")[0]]
        for group in GROUPS:
            tests = kernel["tests"].get(group, {"passed": None})
            if tests["passed"] is None:
                cells.append("did not end")
                continue
            skipped, failed = len(tests["skipped"]), len(tests["failed"])
            text = f"{tests['passed'] - skipped} passed"
            text += f", {failed} failed" * (failed > 0) + f", {skipped} not possible" * (skipped > 0)
            cells.append(text)
        rows.append(cells)
    return table(["kernel", "package", "`auto` captures by", *GROUPS.values()], rows)


def finding(kernel, subject):
    found = kernel["preflight"]["findings"]
    return next((one for one in found if one["subject"] == subject), {"text": "not tried", "level": "bad"})


def programs_table(kernels):
    subjects = []
    for kernel in kernels:
        for one in filter(is_program, kernel["preflight"]["findings"]):
            if one["subject"] not in subjects:
                subjects.append(one["subject"])
    rows = []
    for subject in subjects:
        hook, program = re.match(r"(\S+) \((\S+)\)", subject).groups()
        cells = [f"`{program}`", f"`{hook}`"]
        for kernel in kernels:
            one = finding(kernel, subject)
            if one["text"] == "not tried":
                cells.append("-")
            elif one["level"] == "good":
                count = kernel["preflight"]["verified_instructions"].get(subject)
                cells.append("yes" if count is None else f"{count:,}")
            else:
                cells.append("no")
        rows.append(cells)
    return table(["program", "hook", *(short(kernel) for kernel in kernels)], rows)


def notes(kernels):
    text = ""
    for kernel in kernels:
        others = [one for one in kernel["preflight"]["findings"] if one["level"] != "good"]
        failed = [
            f"{group}: `{name}`"
            for group, tests in kernel["tests"].items()
            for name in tests["failed"]
        ]
        skipped = [
            f"{group}: `{name}`: {why}"
            for group, tests in kernel["tests"].items()
            for name, why in tests["skipped"]
        ]
        if not others and not failed and not skipped:
            continue
        text += f"\n## {short(kernel)}\n"
        text += "".join(f"- {one['subject']}: {': '.join(filter(None, [one['text'], one.get('remedy')]))}\n" for one in others)
        text += "".join(f"- Not possible: {name}\n" for name in skipped)
        text += "".join(f"- Failed: {name}\n" for name in failed)
    return text


def page(kernels):
    return "\n".join(
        [
            HEAD,
            kernels_table(kernels),
            "How many instructions the verifier followed for each program (`yes`: loaded and attached, and the kernel"
            " does not\nreport the number, before 5.16; `no`: refused, see below; `-`: not\nneeded there):\n",
            programs_table(kernels),
        ]
    ) + notes(kernels)


def unexpected(kernels):
    for kernel in kernels:
        for group in GROUPS:
            tests = kernel["tests"].get(group)
            if tests is None or tests["passed"] is None:
                yield f"{kernel['release']}: {group} did not end"
            else:
                yield from (f"{kernel['release']}: {name}" for name in tests["failed"])


def main():
    arguments = sys.argv[1:]
    write = None
    if arguments[:1] == ["--write"]:
        write, arguments = arguments[1], arguments[2:]
    kernels = [read(Path(folder)) for folder in arguments]
    for kernel in kernels:
        if "preflight" not in kernel:
            sys.exit(f"{kernel['release']} printed nothing: see target/kernels/{kernel['suite']}/console")
    text = page(kernels)
    if write:
        Path(write).write_text(text)
    else:
        print(text)
    problems = list(unexpected(kernels))
    for problem in problems:
        print(f"FAILED on {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


main()
