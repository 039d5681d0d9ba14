// Refreshes the changing part of a page while the page is visible, and lets "/" focus the search.
"use strict";
(() => {
  const SECONDS = 5;
  const live = document.querySelector("[data-live]");
  const told = document.getElementById("refreshed");
  let paused = false;
  let timer = 0;
  let asking = false;

  const plan = () => {
    clearTimeout(timer);
    if (live && !paused && document.visibilityState === "visible") {
      timer = setTimeout(refresh, SECONDS * 1000);
    }
  };

  // Replace the changing part, but keep the focus and the scroll position of each table.
  const replace = (text) => {
    const scrolled = [...live.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const key = focused && (focused.getAttribute("href") || focused.getAttribute("aria-label"));
    const opened = new Set([...live.querySelectorAll("details[open]")].map((each) => each.id));
    const parsed = new DOMParser().parseFromString(text, "text/html");
    live.replaceChildren(...parsed.body.childNodes);
    [...live.querySelectorAll(".scroll")].forEach((each, place) => {
      if (scrolled[place]) {
        [each.scrollLeft, each.scrollTop] = scrolled[place];
      }
    });
    live.querySelectorAll("details").forEach((each) => {
      each.open = each.open || opened.has(each.id);
    });
    if (key) {
      const again = [...live.querySelectorAll("a, [tabindex]")].find(
        (each) => key === (each.getAttribute("href") || each.getAttribute("aria-label")));
      if (again) {
        again.focus({ preventScroll: true });
      }
    }
  };

  const isSelecting = () => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && live.contains(selection.anchorNode);
  };

  const refresh = async () => {
    if (asking || isSelecting()) {
      plan();
      return;
    }
    asking = true;
    try {
      const answer = await fetch(location.pathname + location.search, { headers: { "X-Fragment": "1" } });
      if (answer.status === 403) {
        location.reload(); // the login has ended
        return;
      }
      if (answer.ok && answer.headers.get("X-Fragment") === "1") {
        replace(await answer.text());
        told.textContent = `Refreshed at ${new Date().toLocaleTimeString()}.`;
        document.documentElement.dataset.refreshed = String(Number(document.documentElement.dataset.refreshed || 0) + 1);
      } else {
        told.textContent = "The console could not refresh this page; it tries again.";
      }
    } catch {
      told.textContent = "The console does not answer; the page tries again.";
    } finally {
      asking = false;
      plan();
    }
  };

  if (live && live.childElementCount) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Pause refreshing";
    button.addEventListener("click", () => {
      paused = !paused;
      button.textContent = paused ? "Refresh again" : "Pause refreshing";
      plan();
    });
    told.before(button);
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible" && !paused) {
        refresh();
      } else {
        clearTimeout(timer);
      }
    });
    plan();
  }

  // A change of chosen rows is possible once a row is chosen.
  document.querySelectorAll("form.choosing").forEach((form) => {
    const boxes = [...form.querySelectorAll("input[type=checkbox]")];
    const all = form.querySelector("a.choose");
    const follow = () => {
      const count = boxes.filter((each) => each.checked).length;
      form.querySelectorAll("button").forEach((each) => {
        each.disabled = count === 0;
      });
      if (all) {
        all.textContent = count === boxes.length ? "Choose none" : "Choose all on this page";
      }
    };
    form.addEventListener("change", follow);
    window.addEventListener("pageshow", follow); // (the browser restores boxes of an earlier visit)
    if (all) {
      all.addEventListener("click", (event) => {
        event.preventDefault();
        const isAll = boxes.every((each) => each.checked);
        boxes.forEach((each) => {
          each.checked = !isAll;
        });
        follow();
      });
    }
    follow();
  });

  // A new tab gets the address of this browser's login. Only pages of this port can read the storage.
  const home = document.querySelector("a.home").getAttribute("href");
  const following = document.querySelector("#token") && document.querySelector("input[name=next]").value;
  const findLogin = async () => {
    const known = localStorage.getItem("login");
    const answer = known && await fetch(known, { headers: { "X-Fragment": "1" } });
    if (answer && answer.ok) {
      location.replace(known + following.slice(1));
    } else {
      localStorage.removeItem("login");
    }
  };
  if (home !== "/") {
    localStorage.setItem("login", home);
  } else if (following) {
    findLogin().catch(() => 0);
  }

  document.addEventListener("keydown", (event) => {
    const target = event.target;
    const isTyping = target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
    const find = document.getElementById("find");
    if (event.key === "/" && find && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      find.focus();
      find.select();
    }
  });
})();
