"use strict";
// Reloads the list of searches periodically while the page is visible.
(() => {
  const line = document.getElementById("line");
  const PAUSE_MS = 5000;

  const say = (state, text) => {
    line.dataset.state = state;
    if (line.textContent !== text) line.textContent = text;
  };

  const renew = async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch("/");
      if (answer.status === 401) throw new Error("Sign-in expired: parlay serve --page prints a new address.");
      if (!answer.ok) throw new Error("The service cannot list the searches at the moment.");
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      const before = document.querySelector("main");
      if (fresh.textContent !== before.textContent) replaceContent(before, fresh);
      say("live", "Live");
    } catch (error) {
      say("lost", error instanceof TypeError ? "Connection to the service lost; retrying." : error.message);
    }
  };

  const replaceContent = (before, fresh) => {
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
