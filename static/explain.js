// Puts a chosen or dropped file's text into the box, so that its lines can be seen and changed, and
// keeps the box for this tab alone: a log is in no address, and a reload would lose it.
(() => {
  "use strict";
  const KEY = "explain-log";
  const kept = (change) => {
    try { return change(sessionStorage); } catch { return null; } // a tab may keep nothing
  };
  const changed = (box) => box.dispatchEvent(new Event("input", { bubbles: true }));

  document.addEventListener("change", async (event) => {
    const field = event.target.closest('[data-log] input[type="file"]');
    if (!field || !field.files.length) return;
    const box = field.form.elements.log;
    box.value = await field.files[0].text();
    field.value = "";
    changed(box);
  });

  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-log] textarea")) return;
    const text = event.target.value;
    kept((store) => (text ? store.setItem(KEY, text) : store.removeItem(KEY)));
  });

  // On a reload or in the other language; whoever comes anew finds what the address says.
  const restore = () => {
    const area = document.querySelector("[data-log]");
    const [entry] = performance.getEntriesByType("navigation");
    if (area.dataset.log === "given") return;
    if (entry?.type !== "reload" && !location.search.includes("lang=")) return;
    const text = kept((store) => store.getItem(KEY));
    if (!text) return;
    const box = area.querySelector("textarea");
    box.value = text;
    changed(box);
  };
  // Not before the form answers to changes.
  if (document.querySelector("#ask[data-htmx-powered]")) restore();
  else document.addEventListener("htmx:after:process", restore, { once: true });
})();
