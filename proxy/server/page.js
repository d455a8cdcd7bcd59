"use strict";
// Replaces the content every few seconds, also after the proxy was restarted. Open details stay open.
(() => {
  const EVERY_MS = 5000;
  const content = document.getElementById("content");
  const state = document.getElementById("state");
  const search = document.getElementById("search");
  const query = () => {
    const asked = new URLSearchParams(location.search);
    asked.set("search", search.value);
    return asked;
  };
  const opened = (root) => [...root.querySelectorAll("tr")].filter((row) => row.querySelector("details[open]"));
  const nameOf = (row) => row.querySelector("th")?.firstChild?.textContent;
  let latest = 0;
  async function update() {
    const number = ++latest;
    try {
      const answer = await fetch("/content?" + query(), { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      if (number !== latest) return;
      const kept = new Set(opened(content).map(nameOf));
      const focused = content.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const scrolled = content.querySelector(".scroll")?.scrollLeft ?? 0;
      content.innerHTML = text;
      for (const row of content.querySelectorAll("tbody tr")) {
        const details = row.querySelector("details");
        if (details && kept.has(nameOf(row))) details.open = true;
      }
      if (focused) content.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
      const region = content.querySelector(".scroll");
      if (region) region.scrollLeft = scrolled;
      if (state.className) { state.className = ""; state.textContent = "Updated again"; }
    } catch {
      if (!state.className) { state.className = "late"; state.textContent = "The proxy does not answer"; }
    }
  }
  search.addEventListener("input", update);
  setInterval(() => { if (!document.hidden) update(); }, EVERY_MS);
})();
