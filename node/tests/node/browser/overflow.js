// How much of the page lies to the right of the window, in pixels, and what. Tables that scroll in a region of their own do
// not count, and the regions do.
(() => {
  const width = document.documentElement.clientWidth;
  const free = [...document.body.querySelectorAll("*")].filter((node) => !node.parentElement.closest(".wide"));
  const over = free.filter((node) => node.getBoundingClientRect().right > width + 0.5);
  return {
    beyond: document.documentElement.scrollWidth - width,
    over: over.map((node) => `${node.tagName} ${node.textContent.trim().slice(0, 60)}`),
  };
})()
