"""Pictures and other files beside the pages: each is shown by a page, and as small as it can be without a loss."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.unit.docs.documents import DOCUMENTS, links, name_of
from tests.unit.style.sources import ROOT
from tools.pictures import FOLDER, of_benchmarks, small

MOST_BYTES = 40_000
BESIDES = sorted(path for path in (ROOT / "docs").rglob("*") if path.is_file() and path.suffix != ".md")

DRAWN = """<?xml version="1.0" encoding="utf-8" standalone="no"?>
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="504pt" height="90pt" viewBox="0 0 504 90"
 xmlns="http://www.w3.org/2000/svg" version="1.1">
 <metadata><about>matplotlib</about></metadata>
 <g id="figure_1"><g id="axes_1">
  <defs><path id="m4fad" d="M 0 0 L 0 3.5 " style="stroke: #000000"/>
   <clipPath id="p09"><rect x="15.000865" y="16.29474" width="485.9" height="73.1"/></clipPath></defs>
  <g clip-path="url(#p09)">
   <use xlink:href="#m4fad" x="37.091724" y="33.134684" style="stroke: #000000; stroke-width: 0.8"
   /><use xlink:href="#m4fad" x="57.191724" y="33.134684" style="stroke: #000000; stroke-width: 0.8"/></g>
  <g id="line"><path d="M 10.04 20 L 20.03 20.04 L 30 20 L 40 60.123 " clip-path="url(#p09)" style="fill: none"/></g>
  <text style="font-size: 8px; font-family: 'DejaVu Sans', 'Arial'" x="18.27024" transform="rotate(-0 18 76)">4</text>
 </g></g>
</svg>
"""


def test_pictures_of_benchmarks_are_small() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in of_benchmarks()}
    assert texts
    assert not [name for name, text in texts.items() if text != small(text)], "run `python -m tools.pictures`"


def test_no_picture_is_larger_than_a_page() -> None:
    assert not {path.name: size for path in FOLDER.iterdir() if (size := path.stat().st_size) > MOST_BYTES}


def test_every_file_beside_the_pages_is_linked_by_one() -> None:
    linked = {
        (document.parent / link).resolve()
        for document in DOCUMENTS
        for link in links(document.read_text(encoding="utf-8"))
        if "://" not in link
    }
    assert len(BESIDES) > 10
    assert not [name_of(path) for path in BESIDES if path not in linked]


def test_a_small_picture_shows_the_same() -> None:
    root = ElementTree.fromstring(small(DRAWN))
    of = {element.tag.partition("}")[2]: element for element in root.iter()}
    lines = [element.get("d") for element in root.iter() if element.tag.endswith("}path")]
    assert lines == ["M0 0l0 3.5", "M10 20l20 0 10 40.1"], "a point that the line passes closely is left out"
    assert [(use.get("x"), use.get("y")) for use in root.iter() if use.tag.endswith("}use")] == [
        ("37.1", "33.1"),
        ("57.2", "33.1"),
    ]
    assert of["g"].get("style") == "stroke:#000000;stroke-width:0.8", "stated once for both"
    assert (of["text"].text, of["text"].get("style"), of["text"].get("transform")) == ("4", "font-size:8px", None)
    assert of["clipPath"].get("id") == "i0"
    assert "metadata" not in of
    assert small(small(DRAWN)) == small(DRAWN)


def test_many_dots_of_one_colour_are_one_path() -> None:
    curve = "M 0 1.3 C 0.35 1.3 0.68 1.18 0.92 0.92 C 1.18 0.68 1.3 0.35 1.3 0 C 1.3 -0.5 0.7 -1.3 0 -1.3 z"
    look = "fill: #1b6ca8; stroke: #1b6ca8; stroke-width: 0.9"
    dots = "".join(f'<use xlink:href="#m" x="{number}.04" y="9" style="{look}"/>' for number in range(30))
    text = small(
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt">'
        f'<defs><path id="m" d="{curve}"/></defs><g clip-path="none">{dots}</g></svg>'
    )
    assert "<use" not in text
    assert 'd="M0 9h0M1 9h0M2 9h0' in text
    assert "stroke:#1b6ca8;stroke-width:3.5;stroke-linecap:round" in text
