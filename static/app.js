// Draws charts from JSON islands, copies figures, keeps the theme. It never computes bytes.
(() => {
  "use strict";
  const root = document.documentElement;
  const token = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  // A colour token may be light-dark(): let the browser resolve it on a probe element.
  const probe = document.createElement("span");
  probe.hidden = true;
  const colour = (role) => {
    probe.style.color = `var(--${role})`;
    return getComputedStyle(probe).color;
  };

  let library;
  const plotly = () => {
    library ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = document.querySelector('meta[name="plotly"]').content;
      script.onload = () => resolve(window.Plotly);
      script.onerror = reject;
      document.head.append(script);
    });
    return library;
  };

  const paint = (figure) => {
    const ink = colour("ink"), rule = colour("rule"), paper = colour("paper");
    const axis = { gridcolor: rule, linecolor: rule, zerolinecolor: rule, automargin: true };
    for (const trace of figure.data) {
      const role = trace.meta?.role;
      if (!role) continue;
      trace.marker = { ...trace.marker, color: colour(role) };
      if (trace.marker.pattern) trace.marker.pattern = { ...trace.marker.pattern, fgcolor: paper };
      if (trace.type === "scatter") trace.line = { ...trace.line, color: colour(role) };
    }
    const layout = figure.layout;
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { color: ink, family: token("font-family") || "system-ui, sans-serif", size: 13 };
    layout.autosize = true;
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) layout[name] = { ...axis, ...layout[name] };
    }
    return figure;
  };

  const draw = async (box) => {
    const island = box.querySelector('script[type="application/json"]');
    const place = box.querySelector(".plot");
    if (!island || !place) return;
    const figure = paint(JSON.parse(island.textContent));
    const Plotly = await plotly();
    if (!place.isConnected) return; // it was replaced meanwhile
    await Plotly.react(place, figure.data, figure.layout, {
      displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true,
      modeBarButtonsToRemove: ["lasso2d", "select2d"], locale: "en",
    });
  };
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      seen.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "200px" });
  const charts = (scope) => scope.querySelectorAll?.(".chart").forEach((box) => seen.observe(box));
  const redraw = () => document.querySelectorAll(".chart:has(.js-plotly-plot)").forEach(draw);

  const say = (text) => { document.getElementById("said").textContent = text; };
  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); } catch { return; }
    say(document.getElementById("said").dataset.copied);
  };

  const setTheme = () => {
    const dark = getComputedStyle(root).colorScheme === "dark"
      || (root.dataset.theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
    redraw();
  };

  document.addEventListener("click", (event) => {
    const target = event.target.closest("[data-copy], [data-copy-from], [data-copy-link], [data-theme-switch]");
    if (!target) return;
    if (target.matches("[data-theme-switch]")) setTheme();
    else if (target.matches("[data-copy-link]")) copy(location.href);
    else if (target.dataset.copyFrom) copy(document.getElementById(target.dataset.copyFrom).textContent);
    else copy(target.dataset.copy);
  });

  // A file dropped on a marked area goes into that area's file field, which submits itself.
  document.addEventListener("dragover", (event) => {
    const area = event.target.closest?.("[data-drop]");
    if (area) { event.preventDefault(); area.classList.add("over"); }
  });
  document.addEventListener("dragleave", (event) => event.target.closest?.("[data-drop]")?.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    const area = event.target.closest?.("[data-drop]");
    if (!area) return;
    event.preventDefault();
    area.classList.remove("over");
    const field = area.querySelector('input[type="file"]');
    field.files = event.dataTransfer.files;
    field.dispatchEvent(new Event("change", { bubbles: true }));
  });

  document.addEventListener("DOMContentLoaded", () => {
    document.body.append(probe);
    charts(document);
  });
  document.addEventListener("htmx:after:swap", () => charts(document));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
})();
