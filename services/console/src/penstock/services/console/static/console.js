// Fetches the page again and again, and changes what differs: focus, selection and scrolling stay as they are.
"use strict";
(() => {
  const status = document.getElementById("updated");
  if (!status) return;
  const pause = Number(status.dataset.interval) * 1000;
  const parts = ["health", "clock", "main"];
  let paused = false;
  let lost = false;
  const later = [];
  let busy = 0;

  const button = document.createElement("button");
  button.type = "button";
  button.id = "pause";
  button.textContent = "Pause updates";
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Go on updating" : "Pause updates";
  });
  status.append(" ", button);

  // The system's colours, until the others are chosen; a choice is of this browser, and goes when it is the system's again.
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const scheme = document.createElement("button");
  scheme.type = "button";
  scheme.id = "scheme";
  const preferred = () => (system.matches ? "dark" : "light");
  const drawn = () => root.dataset.scheme || preferred();
  const label = () => {
    scheme.textContent = drawn() === "dark" ? "Light colours" : "Dark colours";
  };
  const choose = (wanted) => {
    if (wanted === "light" || wanted === "dark") root.dataset.scheme = wanted;
    else delete root.dataset.scheme;
    label();
  };
  // A browser that keeps nothing draws what is chosen all the same, for this page.
  const kept = (use) => {
    try {
      return use(localStorage);
    } catch {
      return null;
    }
  };
  scheme.addEventListener("click", () => {
    const wanted = drawn() === "dark" ? "light" : "dark";
    const own = wanted !== preferred();
    kept((store) => (own ? store.setItem("scheme", wanted) : store.removeItem("scheme")));
    choose(own ? wanted : "");
  });
  system.addEventListener("change", label);
  choose(kept((store) => store.getItem("scheme")));
  status.append(" ", scheme);

  function same(now, then) {
    return now.nodeType === then.nodeType && now.nodeName === then.nodeName && (now.id || "") === (then.id || "");
  }

  function change(now, then) {
    if (now.nodeType !== Node.ELEMENT_NODE) {
      if (now.nodeValue !== then.nodeValue) now.nodeValue = then.nodeValue;
      return;
    }
    for (const { name } of [...now.attributes]) if (!then.hasAttribute(name)) now.removeAttribute(name);
    for (const { name, value } of then.attributes) if (now.getAttribute(name) !== value) now.setAttribute(name, value);
    // Tables can be long: their rows are done later, a few at a time.
    if (now.nodeName === "TBODY" && then.rows.length > 50) later.push([now, then]);
    else children(now, then);
  }

  function children(now, then) {
    const known = new Map();
    for (const child of now.childNodes) if (child.id) known.set(child.id, child);
    let at = now.firstChild;
    for (const child of [...then.childNodes]) {
      const kept = child.id ? known.get(child.id) : null;
      if (kept && kept !== at && same(kept, child)) {
        now.insertBefore(kept, at);
        at = kept;
      }
      if (at && same(at, child)) {
        change(at, child);
        at = at.nextSibling;
      } else {
        now.insertBefore(document.importNode(child, true), at);
      }
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  // Rows by their places: at once those that can be seen, the others with rests for keys and pointers.
  async function rows(now, then) {
    const pairs = [...then.rows].map((row, place) => [now.rows[place], row]);
    while (now.rows.length > pairs.length) now.lastElementChild.remove();
    const height = window.innerHeight;
    const edges = pairs.map(([at]) => at && at.getBoundingClientRect());
    const seen = (place) => edges[place] && edges[place].bottom > -height && edges[place].top < 2 * height;
    const order = [...pairs.keys()].sort((one, other) => (seen(other) ? 1 : 0) - (seen(one) ? 1 : 0));
    let began = performance.now();
    for (const place of order) {
      const [at, row] = pairs[place];
      if (!at) now.append(document.importNode(row, true));
      else if (same(at, row)) change(at, row);
      else at.replaceWith(document.importNode(row, true));
      if (!seen(place) && performance.now() - began > 30) {
        busy += performance.now() - began;
        await new Promise((wake) => setTimeout(wake));
        began = performance.now();
      }
    }
    busy += performance.now() - began;
  }

  async function update() {
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const text = await answer.text();
      const began = performance.now();
      const page = new DOMParser().parseFromString(text, "text/html");
      for (const id of parts) {
        const now = document.getElementById(id);
        const then = page.getElementById(id);
        if (now && then) change(now, then);
      }
      busy = performance.now() - began;
      while (later.length) await rows(...later.shift());
      lost = false;
    } catch {
      // Said once: the region is read aloud whenever it changes.
      if (!lost) document.getElementById("health").textContent = "The console does not answer; what is shown is old.";
      lost = true;
    }
  }

  async function forever() {
    for (;;) {
      // A page that takes long is updated less often: the browser has other things to do.
      await new Promise((wake) => setTimeout(wake, Math.max(pause, Math.min(10000, 5 * busy))));
      if (!paused && !document.hidden) await update();
    }
  }
  forever();
})();
