"""Build the guest parts as packages of their own: `make guest-packages [OUT=build/guest]`.

`kaged-sdk` and `ash-sb` are wheels with the modules of `kaged.sdk` and `kaged.sandbox`, and with
those that these import, under a name of their own: they can stand beside an installed kaged.
`@kaged/plugin-sdk` is packed as it lies in the repository.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
PACKAGES = {"python": ("kaged.sdk", "kaged_sdk"), "ash-sb": ("kaged.sandbox", "ash_sb")}
LEFT_OUT = {"kaged.sdk.own_name"}


def main(out: Path) -> int:
    """Build all three; prints what was made."""
    out.mkdir(parents=True, exist_ok=True)
    for folder, (package, own) in PACKAGES.items():
        stage = out / "stage" / folder
        stage_package(stage, ROOT / "sdk" / folder, package, own)
        command = [
            sys.executable,
            "-m",
            "hatchling",
            "build",
            "-t",
            "wheel",
            "-d",
            str(out.resolve()),
        ]
        subprocess.run(command, cwd=stage, check=True, stdout=subprocess.DEVNULL)
    packed = ["npm", "pack", "--silent", "--pack-destination", str(out.resolve())]
    subprocess.run(packed, cwd=ROOT / "sdk" / "js", check=True, stdout=subprocess.DEVNULL)
    for made in sorted([*out.glob("*.whl"), *out.glob("*.tgz")]):
        print(made)
    return 0


def stage_package(stage: Path, described: Path, package: str, own: str) -> None:
    """Put a package's modules, under its own name, beside what describes it."""
    shutil.rmtree(stage, ignore_errors=True)
    shutil.copytree(described, stage)
    for module, file in sorted(reached(package).items()):
        place = own_place(module, package, own)
        target = stage.joinpath(*place.split("."))
        target = target / "__init__.py" if file.name == "__init__.py" else target.with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8")
        target.write_text(renamed(text, package, own), encoding="utf-8")
    (stage / own / "py.typed").touch()
    version = re.search(r'__version__ = "[^"]+"', (SOURCE / "kaged/__init__.py").read_text("utf-8"))
    assert version is not None
    (stage / own / "_version.py").write_text(
        f'"""The version."""\n\n{version[0]}\n', encoding="utf-8"
    )


def reached(package: str) -> dict[str, Path]:
    """Return the modules of a package and those of ours that they import, with their files."""
    folder = SOURCE.joinpath(*package.split("."))
    waiting = [package, *(f"{package}.{one.stem}" for one in folder.glob("*.py"))]
    found: dict[str, Path] = {}
    while waiting:
        module = waiting.pop().removesuffix(".__init__")
        file = file_of(module)
        if file is None or module in found or module in LEFT_OUT or module == "kaged":
            continue
        found[module] = file
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                waiting += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
                waiting.append(node.module.rpartition(".")[0])
            elif isinstance(node, ast.Import):
                waiting += [one.name for one in node.names]
    return found


def file_of(module: str) -> Path | None:
    """Return the file of a module of ours."""
    if module.partition(".")[0] != "kaged":
        return None
    place = SOURCE.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((one for one in files if one.is_file()), None)


def own_place(module: str, package: str, own: str) -> str:
    """Return the name that a module has in the package of its own."""
    if module == package or module.startswith(f"{package}."):
        return own + module.removeprefix(package)
    return own + module.removeprefix("kaged")


def renamed(text: str, package: str, own: str) -> str:
    """Return a module's text with imports that lead into the package of its own."""
    text = text.replace("from kaged import __version__", f"from {own}._version import __version__")
    text = re.sub(rf"\b{re.escape(package)}\b", own, text)
    return re.sub(r"\bkaged\.(base|wire)\b", rf"{own}.\1", text)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "guest"))
