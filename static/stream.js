// Sends a form marked data-stream and shows its answer as it comes, one JSON object a line:
//   {"done": 3, "total": 10, "text": "…"}  how far it is; without a total, nobody knows
//   {"put": "answer", "html": "…"}         takes the place of the element with that id
//   {"add": "rows", "html": "…"}           goes to the end of the element with that id
//   {"address": "/traces?…"}               where the same is found again
// Inside the form stands [data-panel], hidden, with a progress bar, [data-at] for the text and a
// [data-cancel] button; its data-sending, data-cancelled and data-failed are sentences.
(() => {
  "use strict";
  const TYPE = "application/x-ndjson";
  const running = new WeakMap();

  const lines = async function* (body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      for (const part of parts) if (part) yield JSON.parse(part);
    }
  };

  const show = (line) => {
    if (line.address) history.replaceState(null, "", line.address);
    if (line.put) document.getElementById(line.put).outerHTML = line.html;
    if (line.add) document.getElementById(line.add).insertAdjacentHTML("beforeend", line.html);
    if (line.html) document.dispatchEvent(new CustomEvent("htmx:after:swap"));
  };

  const send = async (form, submitter) => {
    running.get(form)?.abort();
    const stop = new AbortController();
    running.set(form, stop);
    const panel = form.querySelector("[data-panel]");
    const bar = panel.querySelector("progress");
    const at = panel.querySelector("[data-at]");
    bar.removeAttribute("value");
    at.textContent = panel.dataset.sending;
    panel.hidden = bar.hidden = panel.querySelector("[data-cancel]").hidden = false;
    try {
      const fields = new FormData(form, submitter);
      const get = form.method === "get";
      const address = form.getAttribute("action") + (get ? `?${new URLSearchParams(fields)}` : "");
      const answer = await fetch(address, {
        method: form.method, body: get ? null : fields, headers: { accept: TYPE }, signal: stop.signal,
      });
      if (!answer.headers.get("content-type")?.startsWith(TYPE)) throw new Error(answer.statusText);
      for await (const line of lines(answer.body)) {
        show(line);
        if (line.text) at.textContent = line.text;
        if (line.total) { bar.max = line.total; bar.value = line.done; }
      }
      panel.hidden = true;
    } catch {
      if (running.get(form) !== stop) return; // a newer run has the panel
      at.textContent = stop.signal.aborted ? panel.dataset.cancelled : panel.dataset.failed;
      bar.hidden = panel.querySelector("[data-cancel]").hidden = true;
    }
  };

  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-stream]")) return;
    event.preventDefault();
    send(event.target, event.submitter);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-cancel]");
    if (button) running.get(button.form)?.abort();
  });
  // A chosen or dropped file goes at once, unless it is larger than its field's data-max-bytes.
  document.addEventListener("change", (event) => {
    const field = event.target;
    if (!field.matches('form[data-stream] input[type="file"]')) return;
    const large = [...field.files].some((file) => file.size > Number(field.dataset.maxBytes));
    field.setCustomValidity(large ? field.dataset.tooLarge : "");
    if (field.files.length && field.reportValidity()) field.form.requestSubmit();
  });
})();
