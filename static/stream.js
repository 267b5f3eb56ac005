// Sends a form marked data-stream and shows its answer as it comes, one JSON object a line:
//   {"done": 3, "total": 10, "text": "…"}  how far it is; without a total, nobody knows
//   {"put": "answer", "html": "…"}         takes the place of the element with that id
//   {"add": "rows", "html": "…"}           goes to the end of the element with that id
//   {"address": "/traces?…"}               where the same is found again
// Inside the form stands [data-panel], hidden, with a progress bar, [data-at] for the text and a
// [data-cancel] button; its data-sending, data-cancelled and data-failed are sentences.
// A form whose data-stream is "now" is sent when the page opens.
(() => {
  "use strict";
  const TYPE = "application/x-ndjson";
  const running = new WeakMap();

  const show = (line, call) => {
    // What was typed meanwhile has an address of its own, which stays.
    if (line.address && location.href === call.begunAt) {
      history.replaceState(null, "", line.address);
      call.begunAt = location.href;
    }
    if (line.put) document.getElementById(line.put).outerHTML = line.html;
    if (line.add) document.getElementById(line.add).insertAdjacentHTML("beforeend", line.html);
    if (line.html) document.dispatchEvent(new CustomEvent("htmx:after:swap"));
  };

  const send = (form, submitter) => {
    running.get(form)?.abort();
    // Unlike fetch, this tells how much of a file has been sent.
    const call = new XMLHttpRequest();
    running.set(form, call);
    call.begunAt = location.href;
    const panel = form.querySelector("[data-panel]");
    const bar = panel.querySelector("progress");
    const at = panel.querySelector("[data-at]");
    const cancel = panel.querySelector("[data-cancel]");
    const progress = ({ text, done, total }) => {
      if (text) at.textContent = text;
      if (total) { bar.max = total; bar.value = done; }
    };
    const end = (text) => {
      if (running.get(form) !== call) return; // a newer one has the panel
      running.delete(form);
      at.textContent = text;
      bar.hidden = cancel.hidden = true;
    };
    let seen = 0;
    const read = () => {
      if (!form.isConnected) { call.abort(); return; } // another answer has taken its place
      if (!call.getResponseHeader("content-type")?.startsWith(TYPE)) return;
      const next = call.responseText.lastIndexOf("\n") + 1;
      const lines = call.responseText.slice(seen, next).split("\n");
      seen = next;
      for (const line of lines.filter(Boolean).map(JSON.parse)) { show(line, call); progress(line); }
    };
    call.upload.onprogress = ({ loaded, total }) => progress({ done: loaded, total });
    call.onprogress = read;
    call.onload = () => { read(); end(seen ? "" : panel.dataset.failed); panel.hidden = seen > 0; };
    call.onerror = () => end(panel.dataset.failed);
    call.onabort = () => end(panel.dataset.cancelled);

    bar.removeAttribute("value");
    at.textContent = panel.dataset.sending;
    panel.hidden = bar.hidden = cancel.hidden = false;
    const fields = new FormData(form, submitter);
    const get = form.method === "get";
    call.open(form.method, form.getAttribute("action") + (get ? `?${new URLSearchParams(fields)}` : ""));
    call.setRequestHeader("accept", TYPE);
    call.send(get ? null : fields);
  };

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-stream]")) return;
    event.preventDefault();
    send(event.target, event.submitter);
  });
  document.addEventListener("click", ({ target }) => {
    if (target.matches("[data-cancel]")) running.get(target.form)?.abort();
  });
  // A chosen or dropped file goes at once, unless it is larger than its field's data-max-bytes.
  document.addEventListener("change", ({ target }) => {
    if (!target.matches('form[data-stream] input[type="file"]')) return;
    const large = [...target.files].some((file) => file.size > Number(target.dataset.maxBytes));
    target.setCustomValidity(large ? target.dataset.tooLarge : "");
    if (target.files.length && target.reportValidity()) target.form.requestSubmit();
  });
  document.querySelector('form[data-stream="now"]')?.requestSubmit();
})();
