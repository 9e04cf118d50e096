"""Checks of `make docs` over the code blocks of every page: YAML and JSON parse, shell has no syntax error, and each
`leno` command and option in a block for a shell is in docs/reference/leno.md or leno-bench.md."""

import json
import logging
import os
import re
import subprocess

import yaml

log = logging.getLogger("mkdocs.plugins.leno")  # a warning fails the build: it is strict
BLOCK = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
# Redirections, pipes and substitutions end a command.
ENDS = re.compile(r"[|<>;&()`]|\$\(")


def on_page_markdown(markdown, page, config, files):
    for _, language, text in BLOCK.findall(markdown):
        words = language.split()
        problem = check(words[0] if words else "", text, config["docs_dir"])
        if problem:
            log.warning("%s: code block %r: %s", page.file.src_uri, text.strip().split("\n")[0], problem)


def check(language, text, root):
    try:
        if language == "yaml":
            list(yaml.compose_all(text))
        elif language == "json":
            json.loads(text)
    except (yaml.YAMLError, ValueError) as error:
        return error
    if language == "console":
        # `$ ` begins a command, `> ` goes on with it; other lines are what it prints.
        lines = re.findall(r"^ *\$ (.*(?:\n *> .*)*)", text, re.MULTILINE)
        text = "\n".join(re.sub(r"\n *> ", "\n", line) for line in lines)
    if language in ("console", "sh", "bash"):
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
        if done.returncode != 0:
            return done.stderr
        return commands(text, reference(root))
    return None


def reference(root, cache={}):
    """The options of each command: `{"leno up": {"--name", ...}}`."""
    if not cache:
        for name in ("leno.md", "leno-bench.md"):
            with open(os.path.join(root, "docs/reference", name), encoding="utf-8") as page:
                command = None
                for line in page:
                    if line.startswith("#"):
                        command = line.lstrip("#").strip()
                        cache.setdefault(command, set())
                    elif line.startswith("| `"):
                        cache[command] |= set(re.findall(r"`(--?[a-zA-Z][a-z-]*)", line.split("|")[1]))
    return cache


def commands(text, known):
    for line in text.replace("\\\n", " ").split("\n"):
        found = re.match(r"^\s*(?:sudo (?:env \S+ )?|[A-Z_]+=\S+ )*leno( .*)?$", line.split(" #")[0])
        if not found:
            continue
        words = ENDS.split(found[1] or "")[0].split(" -- ")[0].split()
        command = "leno"
        while words and f"{command} {words[0]}" in known:
            command += " " + words.pop(0)
        if command == "leno" and words and words[0] not in ("help", "version", "--help", "--version"):
            return f"there is no command leno {words[0]}"
        for word in words:
            option = word.split("=")[0]
            if re.match(r"--[a-z]", option) and option not in known[command] | {"--help"}:
                return f"{command} has no option {option}"
    return None
