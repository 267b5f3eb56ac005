// Puts a chosen or dropped file's text into the box, so that its lines can be seen and changed.
(() => {
  "use strict";
  document.addEventListener("change", async (event) => {
    const field = event.target.closest('[data-log] input[type="file"]');
    if (!field || !field.files.length) return;
    const box = field.form.elements.log;
    box.value = await field.files[0].text();
    field.value = "";
    box.dispatchEvent(new Event("input", { bubbles: true }));
  });
})();
