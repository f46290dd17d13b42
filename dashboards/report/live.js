"use strict";
// Keeps the report of a search that runs the newest there is. Where its reader is stays as it was: what has not changed
// is not drawn again, and the place, the order and the filter of the table, open logs and the focus are put back.
(() => {
  const line = document.getElementById("line");
  const here = location.pathname.replace(/\/$/, "");
  const SILENT_MS = 20000, AGAIN_MS = 3000;
  let source = null, wanted = 0, shown = 0, isFetching = false, isOver = false, silence = 0;

  const say = (state, words) => {
    line.dataset.state = state;
    if (line.textContent !== words) line.textContent = words;
  };

  const lost = (words) => say("lost", words || "Connection to the service lost; retrying. Showing the last state received.");

  const follow = () => {
    source?.close();
    if (document.hidden) return;
    source = new EventSource(`${here}/events`);
    source.addEventListener("report", (event) => {
      const told = JSON.parse(event.data);
      wanted = told.seq;
      isOver = told.is_ended;
      heard(told);
      if (isOver) source.close();
      renew();
    });
    source.addEventListener("alive", (event) => heard(JSON.parse(event.data)));
    source.addEventListener("error", () => {
      lost();
      if (source.readyState === EventSource.CLOSED) whyRefused();
    });
    listen();
  };

  // A line can die without a word of it.
  const listen = () => {
    clearTimeout(silence);
    if (!isOver) silence = setTimeout(() => { lost(); follow(); }, SILENT_MS);
  };

  const heard = (told) => {
    listen();
    if (told.stopped !== null && !isOver) say("stopped", `Nobody drives the search any more: ${told.stopped}`);
    else say(isOver ? "ended" : "live", isOver ? "The search has ended" : "Live");
  };

  // The browser gives up after an answer that is no stream, and tells no more of it.
  const whyRefused = async () => {
    const status = await fetch(`${here}/report`).then((answer) => answer.status, () => 0);
    if (status === 401) lost("The service does not know this browser any more: parlay serve --page prints a new address.");
    else if (status === 404) lost("The service does not know this search.");
    setTimeout(follow, AGAIN_MS);
  };

  // One at a time; while nobody looks, or while somebody marks text to copy it, the newest one waits.
  const renew = async () => {
    if (isFetching || shown === wanted || document.hidden || !getSelection().isCollapsed) return;
    isFetching = true;
    const seq = wanted;
    try {
      const answer = await fetch(`${here}/report`);
      if (!answer.ok) throw new Error(answer.statusText);
      swap(new DOMParser().parseFromString(await answer.text(), "text/html"));
      shown = seq;
    } catch {
      setTimeout(renew, AGAIN_MS);
    }
    isFetching = false;
    if (shown !== wanted && shown === seq) renew();
  };
  document.addEventListener("selectionchange", renew);

  // A browser has six lines to a service at most: who is not looked at gives theirs back.
  document.addEventListener("visibilitychange", () => {
    if (isOver) return renew();
    if (!document.hidden) return follow();
    source.close();
    clearTimeout(silence);
  });

  const swap = (fresh) => {
    const kept = keep();
    const parts = ["nav", "main", "footer"].map((name) => [document.querySelector(name), document.adoptNode(fresh.querySelector(name))]);
    const main = parts[1][1];
    const field = document.getElementById("filter");
    if (field) main.querySelector("#filter")?.replaceWith(field);
    for (const place of document.querySelectorAll(".plot")) {
      const successor = place.drawn && main.querySelector(`.plot[data-figure="${place.dataset.figure}"]`);
      if (!successor) {
        Plotly.purge(place);
        continue;
      }
      place.dataset.height = successor.dataset.height;
      successor.replaceWith(place);
    }
    for (const [before, after] of parts) before.replaceWith(after);
    document.getElementById("figures").textContent = fresh.getElementById("figures").textContent;
    document.title = fresh.title;
    report.show();
    putBack(kept);
  };

  const scroller = () => document.querySelector(".scroll");
  const detailsOf = (trial) => document.querySelector(`tr[data-trial="${CSS.escape(trial)}"] details`);

  const keep = () => {
    const parts = [...document.querySelectorAll("main section[id], main figure[id]")];
    const above = parts.filter((part) => part.getBoundingClientRect().top <= 0).pop();
    const sorted = document.querySelector("th[aria-sort]");
    return {
      at: above && { id: above.id, top: above.getBoundingClientRect().top },
      order: sorted && { name: sorted.textContent, up: sorted.getAttribute("aria-sort") === "ascending" },
      open: [...document.querySelectorAll("tr details[open]")].map((found) => found.closest("tr").dataset.trial),
      scrolled: scroller() && [scroller().scrollLeft, scroller().scrollTop],
      focus: named(document.activeElement),
    };
  };

  const putBack = (kept) => {
    const heads = [...document.querySelectorAll("thead button")];
    const head = heads.find((button) => button.textContent === kept.order?.name);
    if (head) report.sort(head, kept.order.up);
    for (const details of kept.open.map(detailsOf)) if (details) details.open = true;
    if (kept.scrolled) scroller()?.scrollTo(...kept.scrolled);
    kept.focus?.()?.focus({ preventScroll: true });
    const above = kept.at && document.getElementById(kept.at.id);
    if (above) scrollBy({ top: above.getBoundingClientRect().top - kept.at.top, behavior: "instant" });
  };

  // How to find an element's successor in another rendering.
  const named = (element) => {
    if (!element || element === document.body) return null;
    if (element.id) return () => document.getElementById(element.id);
    if (element.matches(".scroll")) return scroller;
    if (element.matches("nav a")) return () => document.querySelector(`nav a[href="${element.getAttribute("href")}"]`);
    const row = element.closest("tr[data-trial]");
    if (row && element.matches("summary")) return () => detailsOf(row.dataset.trial)?.querySelector("summary");
    if (row && element.matches("pre")) return () => detailsOf(row.dataset.trial)?.querySelector("pre");
    if (!element.matches("thead button")) return null;
    return () => [...document.querySelectorAll("thead button")].find((button) => button.textContent === element.textContent);
  };

  follow();
})();
