// Boxes that scroll can be reached by keyboard; headings of the sidebar say their level.
document.addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll("pre, .table-wrapper, .formula")) if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  for (const heading of document.querySelectorAll("[role=heading]:not([aria-level])")) heading.setAttribute("aria-level", "2");
  document.querySelectorAll("aside").forEach((aside, i) => aside.setAttribute("aria-label", i ? "On this page" : "Pages"));
});
