// A field above a long list of sections that hides those in which a word that is typed does not stand.
"use strict";

function filterable(place) {
  const entries = [...document.querySelectorAll("article section section section")];
  const groups = [...document.querySelectorAll("article section section")].filter((s) => s.querySelector("section"));
  const words = new Map(entries.map((entry) => [entry, entry.textContent.toLowerCase()]));
  const field = document.createElement("input");
  const count = document.createElement("output");
  field.type = "search";
  field.placeholder = `Filter the ${place.dataset.of}, such as: ${place.dataset.such}`;
  field.setAttribute("aria-label", `Filter the ${place.dataset.of}`);

  function show() {
    const asked = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const entry of entries) {
      entry.hidden = !asked.every((word) => words.get(entry).includes(word));
    }
    for (const group of groups) {
      group.hidden = [...group.querySelectorAll("section")].every((entry) => entry.hidden);
    }
    const left = entries.filter((entry) => !entry.hidden).length;
    count.textContent = `${left} of ${entries.length}`;
  }

  // Whoever follows a link to an entry sees it, whatever was typed before.
  window.addEventListener("hashchange", () => {
    const wanted = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (wanted && wanted.closest("section[hidden]")) {
      field.value = "";
      show();
      wanted.scrollIntoView();
    }
  });
  field.addEventListener("input", show);
  place.append(field, count);
  show();
}

document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".filter").forEach(filterable));
