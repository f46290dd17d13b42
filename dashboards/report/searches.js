"use strict";
// Reads the list of searches anew from time to time, where somebody looks at it.
(() => {
  const line = document.getElementById("line");
  const PAUSE_MS = 5000;

  const say = (state, words) => {
    line.dataset.state = state;
    if (line.textContent !== words) line.textContent = words;
  };

  const renew = async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch("/");
      if (answer.status === 401) throw new Error("The service does not know this browser any more: parlay serve --page prints a new address.");
      if (!answer.ok) throw new Error("The service cannot list the searches at the moment.");
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      const before = document.querySelector("main");
      if (fresh.textContent !== before.textContent) swap(before, fresh);
      say("live", "Live");
    } catch (error) {
      say("lost", error instanceof TypeError ? "Connection to the service lost; retrying." : error.message);
    }
  };

  const swap = (before, fresh) => {
    const focus = document.activeElement?.getAttribute("href");
    const [left, top] = [before.querySelector(".scroll")?.scrollLeft, before.querySelector(".scroll")?.scrollTop];
    before.replaceWith(document.adoptNode(fresh));
    fresh.querySelector(".scroll")?.scrollTo(left ?? 0, top ?? 0);
    if (focus) fresh.querySelector(`a[href="${focus}"]`)?.focus({ preventScroll: true });
  };

  document.addEventListener("visibilitychange", renew);
  setInterval(renew, PAUSE_MS);
  say("live", "Live");
})();
