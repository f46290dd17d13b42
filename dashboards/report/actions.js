"use strict";
// Cancels or resumes the search after a confirmation. The request carries the action key of this origin.
(() => {
  const here = location.pathname.replace(/\/$/, "");
  const actions = document.querySelector(".actions");
  const line = document.getElementById("line");
  const done = document.getElementById("done");

  const act = async (dialog) => {
    const said = dialog.querySelector("[role=status]");
    const button = dialog.querySelector("[data-confirm]");
    button.disabled = true;
    try {
      const headers = { "parlay-action-key": localStorage.getItem("parlay-action-key") ?? "" };
      const answer = await fetch(`${here}/${dialog.dataset.action}`, { method: "POST", headers });
      if (answer.ok) return dialog.close("done");
      const { error } = await answer.json();
      said.textContent = `${error.message}${error.fix ? `: ${error.fix}` : ""}`;
    } catch {
      said.textContent = "The service did not answer.";
    } finally {
      button.disabled = false;
    }
  };

  for (const dialog of document.querySelectorAll("dialog[data-action]")) {
    const opener = actions.querySelector(`[data-opens="${dialog.dataset.action}"]`);
    opener.addEventListener("click", () => {
      dialog.querySelector("[role=status]").textContent = "";
      dialog.showModal();
    });
    dialog.querySelector("[data-back]").addEventListener("click", () => dialog.close());
    dialog.querySelector("[data-confirm]").addEventListener("click", () => act(dialog));
    dialog.addEventListener("close", () => {
      if (dialog.returnValue !== "done") return;
      done.textContent = dialog.dataset.done;
      done.dataset.action = dialog.dataset.action;
    });
  }

  // The line of the live page says whether the search has a driver, and when it has ended.
  const show = () => {
    actions.querySelector('[data-opens="resume"]').hidden = line.dataset.state !== "stopped";
    const isEnded = line.dataset.state === "ended";
    actions.querySelector('[data-opens="cancel"]').hidden = isEnded;
    if (isEnded || (done.dataset.action === "resume" && line.dataset.state === "live")) done.textContent = "";
  };
  new MutationObserver(show).observe(line, { attributes: true, attributeFilter: ["data-state"] });
  show();
})();
