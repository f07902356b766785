/*
 * html_style.h - what stands on every page: colours, sizes, and the script that shows figures below the pointer.
 */
#ifndef EX_HTML_STYLE_H
#define EX_HTML_STYLE_H

#include <stdio.h>

/* A style element: of a page, and of a picture without one. */
void ex_html_style(FILE *out);
void ex_svg_style(FILE *out);

/* The text of the script. Before it stands `var runs=[...]`, as html_page.c writes it. */
void ex_html_script(FILE *out);

#endif
