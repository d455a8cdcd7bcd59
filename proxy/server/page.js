"use strict";
// Replaces the content every few seconds, also after the proxy was restarted, copies SQL, and chooses all messages.
(() => {
  const EVERY_MS = 5000;
  const content = document.getElementById("content");
  const state = document.getElementById("state");
  const search = document.getElementById("search");
  document.documentElement.classList.add("scripted");
  const query = () => {
    const asked = new URLSearchParams(location.search);
    if (search) asked.set("search", search.value);
    asked.set("part", "content");
    return asked;
  };
  const markOf = (element) => element?.dataset.key ?? element?.getAttribute("href");
  const marked = (mark) => [...content.querySelectorAll("a, button")].filter((element) => markOf(element) === mark);
  const places = () => [...content.querySelectorAll(".scroll")];
  let latest = 0;
  let shown = "";
  async function update() {
    const number = ++latest;
    try {
      const answer = await fetch(location.pathname + "?" + query(), { cache: "no-store" });
      if (!answer.ok && answer.status !== 404) throw new Error(String(answer.status));
      const text = await answer.text();
      if (number !== latest) return;
      if (text !== shown) replace(text);
      if (state.className) { state.className = ""; state.textContent = "Updated again"; }
    } catch {
      if (!state.className) { state.className = "late"; state.textContent = "The proxy does not answer"; }
    }
  }
  function replace(text) {
    shown = text;
    const selection = getSelection();
    if (!selection.isCollapsed && content.contains(selection.anchorNode)) return; // Somebody is selecting text.
    if (content.querySelector("input:checked")) return; // Somebody is choosing messages.
    const focused = content.contains(document.activeElement) ? markOf(document.activeElement) : null;
    const place = focused ? marked(focused).indexOf(document.activeElement) - marked(focused).length : 0;
    const scrolled = places().map((region) => region.scrollLeft);
    content.innerHTML = text;
    places().forEach((region, at) => { region.scrollLeft = scrolled[at] ?? 0; });
    if (focused) marked(focused).at(place)?.focus();
  }
  content.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    const text = button.parentElement.querySelector("pre").textContent;
    try {
      await navigator.clipboard.writeText(text);
      state.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(button.parentElement.querySelector("pre"));
      state.textContent = "Selected: copy it by the keyboard";
    }
    button.textContent = state.textContent.split(":")[0];
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  content.addEventListener("change", (event) => {
    if (!event.target.closest(".all")) return;
    content.querySelectorAll("input[name=id]").forEach((box) => { box.checked = event.target.checked; });
  });
  search?.addEventListener("input", update);
  if (content.hasAttribute("data-live")) setInterval(() => { if (!document.hidden) update(); }, EVERY_MS);
})();
