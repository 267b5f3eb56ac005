// Of a weights file only the head is sent: a header's own length where it says one, else 32 MiB.
// The files go with the form of pasted text, which asks again whenever either changes.
(() => {
  "use strict";
  const MOST = 32 * 2 ** 20;

  const ask = () => document.getElementById("ask").dispatchEvent(new Event("heads"));

  const headOf = async (file) => {
    if (file.size <= 2 ** 20 || file.name.endsWith(".json")) return file;
    let size = MOST;
    const start = new DataView(await file.slice(0, 9).arrayBuffer());
    const length = start.getUint32(0, true) + 2 ** 32 * start.getUint32(4, true);
    // A safetensors file begins with its header's length and a brace.
    if (start.getUint8(8) === 0x7b && length < MOST) size = 8 + length;
    return new File([file.slice(0, size)], file.name);
  };

  document.addEventListener("change", async (event) => {
    const field = event.target.closest('form[data-head] input[type="file"]');
    if (!field || !field.files.length) return;
    const heads = new DataTransfer();
    for (const file of field.files) heads.items.add(await headOf(file));
    field.files = heads.files;
    ask();
  });

  document.addEventListener("reset", (event) => {
    if (event.target.matches("form[data-head]")) setTimeout(ask); // once its fields are empty
  });
})();
