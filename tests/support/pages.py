"""Reads pages of HTML: their elements, where their links lead, and the colours of their style."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from html.parser import HTMLParser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(HTMLParser):
    """The elements of a page; fails where a tag closes what is not open."""

    VOID = ("meta", "link", "img", "br", "hr", "input", "wbr")

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.declared = [], [], None
        self.feed(text)
        self.close()

    def handle_decl(self, decl):
        self.declared = decl

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        if tag not in self.VOID:
            self.open.append(self.elements[-1])

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, text in self.open:
            text.append(data)

    def all(self, tag):
        return [
            (attributes, " ".join("".join(text).split())) for name, attributes, text in self.elements if name == tag
        ]

    @property
    def style(self):
        ((_, style),) = self.all("style")
        return style


def must_stand_alone(page, beside="#", scripts=0):
    """It is well formed, asks nothing of the network, and links lead to one place in it, or to files `beside` it.

    It has as many `scripts` as are expected, all of them written in it.
    """
    assert page.declared == "doctype html"
    assert page.open == []
    assert not [tag for tag, _, _ in page.elements if tag in ("link", "img", "iframe", "form")]
    assert [attributes for attributes, _ in page.all("script")] == [{}] * scripts
    targets = [attributes["id"] for _, attributes, _ in page.elements if "id" in attributes]
    assert len(set(targets)) == len(targets)
    links = [attributes["href"] for _, attributes, _ in page.elements if "href" in attributes]
    assert links
    inner = [link for link in links if link[0] == "#" or not re.fullmatch(beside, link)]
    assert [link for link in inner if link.removeprefix("#") not in targets or link[0] != "#"] == []
    assert "prefers-color-scheme: dark" in page.style
    assert not re.search(r"url\(|@import|https?:", page.style)


def must_scroll_by_keyboard(page):
    """Every table stands in a region that has a name and that a keyboard reaches."""
    regions = [attributes for attributes, _ in page.all("div") if attributes.get("role") == "region"]
    assert len(regions) == len(page.all("table")) > 0
    ids = {attributes.get("id") for _, attributes, _ in page.elements}
    for region in regions:
        assert region["tabindex"] == "0"
        assert region.get("aria-label") or region["aria-labelledby"] in ids


#: Pairs of ink and ground that every page has, by their names in the style.
PAIRS = [("ink", "page"), ("ink", "head"), ("soft", "page"), ("soft", "head"), ("link", "page"), ("bad", "page")]


def contrast(page, pair, scheme):
    """The ratio of luminances of two colours, as WCAG 2 has it; scheme 0 is light and 1 is dark."""
    colours = dict(re.findall(r"--(\w+): #([0-9a-f]+);", page.style.split(":root {")[1 + scheme].split("}")[0]))

    def luminance(name):
        digits = colours[name] if len(colours[name]) == 6 else "".join(2 * digit for digit in colours[name])
        parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dim = sorted(map(luminance, pair), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


#: What WCAG 2 asks of text at level AA.
READABLE = 4.5


def measure_in_chromium(text, folder, measure, width):
    """The value of an expression of JavaScript on a page of some width, and complaints; `d` is the page's document."""
    script = f"const d = f.contentDocument, w = f.contentWindow; document.body.dataset.measured = {measure}"
    # In a frame, since a window has a least width that is wider than a phone.
    frame = f'<iframe id="f" style="width:{width}px;height:800px" srcdoc="{html.escape(text)}"></iframe>'
    wrapper = folder / "wrapper.html"
    wrapper.write_text(
        f"<!doctype html><title>t</title>{frame}<script>f.onload = () => {{{script}}}</script>", encoding="utf-8"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--enable-logging=stderr", "--dump-dom", wrapper.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    (measured,) = re.findall(r'data-measured="(.*?)"', done.stdout)
    return html.unescape(measured), complaints


def on_a_phone(text, folder):
    """The report of Chromium on a page 400 pixels wide: if it is wider, the regions that scroll, and complaints."""
    fits = "d.documentElement.scrollWidth <= d.documentElement.clientWidth"
    scrolls = "[...d.querySelectorAll('.matrix')].some(r => r.scrollWidth > r.clientWidth)"
    measured, complaints = measure_in_chromium(text, folder, f"[w.innerWidth, {fits}, {scrolls}].join()", 400)
    width, fits, scrolls = measured.split(",")
    assert width == "400"
    return fits == "true", scrolls == "true", complaints
