"""Small pictures for the documents: `python -m tools.pictures` rewrites those of docs/img that are not.

matplotlib writes coordinates with six decimals, a font list and a style for each element, and all points of a line.
What is left here shows the same: tenths of a point, each style once a group, and no point that a line passes within
a tenth of a point without it. Rewriting a small picture changes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

FOLDER: Final = Path(__file__).resolve().parent.parent / "docs" / "img"
FONTS: Final = "DejaVu Sans,Verdana,Helvetica,Arial,sans-serif"
TOLERANCE: Final = 0.1
SMALL_EXTENT: Final = 12.0
"""Shapes below it, such as the marker of a point, keep hundredths."""
SVG: Final = "http://www.w3.org/2000/svg"
GROUP: Final = f"{{{SVG}}}g"
PATH: Final = f"{{{SVG}}}path"
USE: Final = f"{{{SVG}}}use"
HREF: Final = "{http://www.w3.org/1999/xlink}href"
MANY: Final = 20
"""More dots than these are one path."""
TOKEN: Final = re.compile(r"[MLCQz]|-?\d*\.?\d+(?:e-?\d+)?")
REFERENCE: Final = re.compile(r"#([\w.-]+)")

Point = tuple[float, float]


def small(text: str) -> str:
    """The picture as small as it is kept."""
    for prefix, space in (("", SVG), ("xlink", HREF[1:].partition("}")[0])):
        ElementTree.register_namespace(prefix, space)
    root = ElementTree.fromstring(text)
    for element in [*root]:
        if element.tag.endswith("}metadata"):
            root.remove(element)
    root.set("font-family", FONTS)
    for element in root.iter():
        _reduce(element)
    for element in root.iter():
        _hoist(element)
    _join_dots(root)
    _rename(root)
    ElementTree.indent(root, space="")
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _reduce(element: Element) -> None:
    """Round the numbers, and drop what a viewer assumes anyway."""
    if style := element.get("style"):
        pairs = [tuple(part.strip() for part in item.split(":", 1)) for item in style.split(";") if ":" in item]
        kept = [f"{name}:{_number(value)}" for name, value in pairs if name != "font-family"]
        element.set("style", ";".join(kept))
    for name in ("x", "y", "width", "height"):
        if element.tag != f"{{{SVG}}}svg" and (value := element.get(name)):
            element.set(name, _number(value))
    if turn := element.get("transform"):
        turned = re.sub(r"-?\d+\.\d+", lambda found: _number(found[0]), turn)
        element.attrib.pop("transform") if turned.startswith("rotate(-0 ") else element.set("transform", turned)
    if line := element.get("d"):
        element.set("d", _path(line))


def _number(text: str) -> str:
    """A number with one decimal at most; anything else as it is."""
    try:
        return f"{float(text):.1f}".removesuffix(".0").replace("-0.0", "0")
    except ValueError:
        return text


# ---------------------------------------------------------------- paths


def _path(line: str) -> str:
    tokens = TOKEN.findall(line)
    if "".join(TOKEN.sub("", line).split()):
        return line  # relative commands: it is small already
    numbers = [float(token) for token in tokens if not token.isalpha()]
    extent = max(map(abs, numbers), default=0.0)
    digits = 2 if extent < SMALL_EXTENT else 1
    return "".join(_written(shape, digits) for shape in _shapes(tokens))


def _shapes(tokens: list[str]) -> Iterator[list[tuple[str, list[Point]]]]:
    """The parts of a path, each as its commands with their points."""
    shape: list[tuple[str, list[Point]]] = []
    numbers: list[float] = []
    command = ""
    for token in [*tokens, "M"]:
        if not token.isalpha():
            numbers.append(float(token))
            continue
        if command:
            shape.append((command, list(zip(numbers[::2], numbers[1::2], strict=True))))
        if token == "M" and shape:
            yield shape
            shape = []
        command, numbers = token, []


def _written(shape: list[tuple[str, list[Point]]], digits: int) -> str:
    if all(command in "MLz" for command, _ in shape):
        points = _without_idle([point for _, found in shape for point in found])
        shape = [("M", points[:1]), ("l", points[1:]), *[item for item in shape if item[0] == "z"]]
    scale = 10**digits
    text, at = "", (0, 0)
    for command, points in shape:
        rounded = [(round(x * scale), round(y * scale)) for x, y in points]
        if command == "l":
            steps = []
            for x, y in rounded:
                if (x, y) != at:
                    steps += [x - at[0], y - at[1]]
                at = (x, y)
            text += "l" + _joined(steps, scale) if steps else ""
        else:
            text += command + _joined([value for point in rounded for value in point], scale)
            at = rounded[-1] if rounded else at
    return text


def _joined(values: list[int], scale: int) -> str:
    text = ""
    for value in values:
        whole = f"{value / scale:g}".replace("-0.", "-.")
        whole = whole[1:] if whole.startswith("0.") else whole
        text += whole if not text or whole.startswith("-") else f" {whole}"
    return text


def _without_idle(points: list[Point]) -> list[Point]:
    """The points of a line without those that it passes closely anyway (Ramer, Douglas and Peucker)."""
    if len(points) < 3:
        return points
    (x, y), (to_x, to_y) = points[0], points[-1]
    length = math.hypot(to_x - x, to_y - y)
    farthest, place = 0.0, 0
    for number, (at_x, at_y) in enumerate(points[1:-1], start=1):
        if length:
            distance = abs((to_x - x) * (y - at_y) - (x - at_x) * (to_y - y)) / length
        else:
            distance = math.hypot(at_x - x, at_y - y)
        if distance > farthest:
            farthest, place = distance, number
    if farthest <= TOLERANCE:
        return [points[0], points[-1]]
    return _without_idle(points[: place + 1])[:-1] + _without_idle(points[place:])


# ---------------------------------------------------------------- groups


def _hoist(parent: Element) -> None:
    """Take groups without attributes out, and state once what all members of a group state."""
    children: list[Element] = []
    for child in parent:
        _unwrap(child, children)
    parent[:] = children
    styles = {child.get("style", "") for child in children if child.tag == USE}
    is_of_uses = parent.tag == GROUP and len(children) > 1 and all(child.tag == USE for child in children)
    if is_of_uses and len(styles) == 1 and styles != {""}:
        parent.set("style", styles.pop())
        for child in children:
            child.attrib.pop("style", None)


def _unwrap(child: Element, into: list[Element]) -> None:
    if child.tag == GROUP and not set(child.attrib) - {"id"}:
        for inner in child:
            _unwrap(inner, into)
    else:
        into.append(child)


def _join_dots(root: Element) -> None:
    """Make one path of many dots of one colour: a line of no length with round ends is a dot."""
    radii = {element.get("id"): radius for element in root.iter(PATH) if (radius := _radius(element.get("d", "")))}
    for group in root.iter(GROUP):
        of = {child.get(HREF, "")[1:] for child in group}
        style = dict(item.split(":", 1) for item in group.get("style", "").split(";") if ":" in item)
        if len(group) > MANY and len(of) == 1 and of <= radii.keys() and style.get("fill") == style.get("stroke"):
            width = 2 * radii[of.pop()] + float(style.get("stroke-width", "1"))
            places = "".join(f"M{child.get('x')} {child.get('y')}h0" for child in group)
            look = f"stroke:{style['stroke']};stroke-width:{width:.1f};stroke-linecap:round"
            group[:] = [Element(PATH, {"d": places, "style": look})]


def _radius(line: str) -> float:
    """That of a circle around 0, drawn as curves; 0 of anything else."""
    if set(re.findall("[A-Za-z]", line)) != {"M", "C", "z"}:
        return 0.0
    numbers = [float(token) for token in TOKEN.findall(line) if not token.isalpha()]
    ends = list(zip(numbers[::2], numbers[1::2], strict=True))[::3]
    radii = [math.hypot(x, y) for x, y in ends]
    return radii[0] if max(radii) - min(radii) < TOLERANCE else 0.0


def _rename(root: Element) -> None:
    """Short ids, for what is referred to; none for the rest."""
    texts = [value for element in root.iter() for name, value in element.items() if name != "id"]
    there = {element.get("id") for element in root.iter()}
    used = dict.fromkeys(name for text in texts for name in REFERENCE.findall(text) if name in there)
    short = {name: f"i{number}" for number, name in enumerate(used)}
    for element in root.iter():
        name = element.attrib.pop("id", None)
        if name in short:
            element.set("id", short[name])
        for attribute, value in element.items():
            if (found := REFERENCE.search(value)) and found[1] in short:
                element.set(attribute, value.replace(found[0], f"#{short[found[1]]}"))


def of_benchmarks() -> list[Path]:
    """The pictures that matplotlib has drawn; those of machines are drawn small."""
    return sorted(path for path in FOLDER.glob("*.svg") if not path.name.startswith("machine-"))


if __name__ == "__main__":
    for place in of_benchmarks():
        before = place.read_text(encoding="utf-8")
        place.write_text(small(before), encoding="utf-8")
        print(f"{place.name}: {len(before):,} bytes, now {place.stat().st_size:,}")
