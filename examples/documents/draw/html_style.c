/*
 * html_style.c - see html_style.h.
 */
#include "html_style.h"
#include "html_plot.h"

/* The page's and the picture's. --run1 to --run8 are of runs that lie over one another. */
static const char colours[] =
    ":root{color-scheme:light dark;--bg:#f4f6f8;--card:#fff;--ink:#1b2430;--soft:#5f6b7a;"
    "--line:#dfe4ea;--grid:#ebeef2;--chunk:#3267d6;--peak:#0b8482;--state:#7d8998;--time:#b26b00;"
    "--loss:#7446c9;--eval:#c2410c;--rate:#8a6d1a;--metric:#1f8a55;--oom:#d22f3d;--clear:#1583cf;"
    "--rung:#b136b0;--run1:#3267d6;--run2:#c2410c;--run3:#1f8a55;--run4:#7446c9;--run5:#8a6d1a;"
    "--run6:#0b8482;--run7:#b136b0;--run8:#5f6b7a}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#11151b;--card:#1a2028;--ink:#e7ebf1;"
    "--soft:#98a5b5;--line:#2d3743;--grid:#252d38;--chunk:#78a2ff;--peak:#3fc6bd;--state:#8b97a7;"
    "--time:#f0ad4a;--loss:#b594ff;--eval:#ff9a62;--rate:#d8bd6a;--metric:#55cd8f;--oom:#ff6b74;"
    "--clear:#56b6ff;--rung:#ee82ec;--run1:#78a2ff;--run2:#ff9a62;--run3:#55cd8f;--run4:#b594ff;"
    "--run5:#d8bd6a;--run6:#3fc6bd;--run7:#ee82ec;--run8:#98a5b5}}\n";

static const char lines[] =
    ".grid{stroke:var(--grid)}.axis{stroke:var(--soft)}.tick{fill:var(--soft);font-size:12px}"
    ".area{fill:var(--c);opacity:.16}.line{fill:none;stroke:var(--c);stroke-width:1.7}"
    ".faint{fill:none;stroke:var(--c);opacity:.45}.rest{fill:var(--state);opacity:.35}"
    ".eval{fill:none;stroke:var(--c);stroke-width:1.7;stroke-dasharray:5 3}"
    ".budget{fill:none;stroke:var(--c);stroke-width:1.5;stroke-dasharray:7 4}"
    ".dot{fill:var(--c)}.epoch{stroke:var(--state);stroke-dasharray:2 4;opacity:.6}"
    ".mark line{stroke:currentColor;opacity:.3}.mark path,.key path{fill:currentColor}"
    ".oom{color:var(--oom)}.clear{color:var(--clear)}.rung{color:var(--rung)}\n";

static const char page[] =
    "*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);"
    "font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;"
    "font-variant-numeric:tabular-nums}\n"
    "main{max-width:1080px;margin:0 auto;padding:28px 16px 48px}"
    "h1{font-size:26px;line-height:1.2;margin:0 12px 0 0;display:inline}"
    "h2{font-size:17px;margin:0 0 12px}h3{font-size:14px;margin:12px 0 2px}h3 "
    "span{font-weight:400;color:var(--soft)}\n"
    "section{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:18px 20px;margin-top:16px}.none{color:var(--soft);margin:4px 0}"
    "ul{margin:0;padding-left:20px}\n"
    ".pill{display:inline-block;border-radius:99px;padding:2px 12px;font-size:13px;color:#fff;"
    "vertical-align:4px;background:var(--soft)}.done{background:#1f8a55}.stopped{background:#"
    "a86400}"
    ".failed{background:#c92a37}header p{margin:8px 0 0;color:var(--soft);"
    "overflow-wrap:anywhere}\n"
    ".tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,9em),1fr));gap:12px;"
    "margin-top:18px}.tile{background:var(--card);border:1px solid var(--line);border-radius:10px;"
    "padding:12px 16px}.tile b{display:block;font-size:21px;font-weight:600;line-height:1.3}"
    ".tile span{color:var(--soft);font-size:13px}.bad b{color:var(--oom)}\n"
    ".bar{display:flex;height:22px;border-radius:6px;overflow:hidden;background:var(--grid);"
    "margin:14px 0 8px}.bar "
    "div{min-width:0}.p1{background:var(--chunk)}.p2{background:var(--clear)}"
    ".p3{background:var(--loss)}.p4{background:var(--peak)}.p5{background:var(--grid)}"
    ".legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0;padding:0;list-style:none;"
    "font-size:13px;color:var(--soft)}.legend i{display:inline-block;width:11px;height:11px;"
    "border-radius:3px;margin-right:6px;border:1px solid var(--line)}\n"
    ".wrap{overflow-x:auto}.plots{display:grid;gap:4px 28px;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,26em),1fr))}"
    "figure{margin:0;min-width:0}.plot{display:block;width:100%;height:auto}"
    ".plot line,.plot path{vector-effect:non-scaling-stroke}"
    ".hair{stroke:var(--ink);opacity:.55}"
    ".key svg{width:12px;height:12px;margin-right:6px;vertical-align:-1px}"
    ".key i{background:var(--c)}summary{cursor:pointer;font-weight:600;margin-top:16px}\n"
    "table{border-collapse:collapse;width:100%;font-size:14px}th,td{padding:5px 12px 5px 0;"
    "text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}"
    "th{color:var(--soft);font-weight:500}.text td,.text th{text-align:left;white-space:normal;"
    "vertical-align:top;overflow-wrap:anywhere}.text td:first-child{white-space:nowrap}"
    "code{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}\n"
    "#tip{position:fixed;left:0;bottom:0;right:0;background:var(--ink);color:var(--bg);"
    "padding:8px 16px;font-size:13px;text-align:center;white-space:pre-line;pointer-events:none}\n"
    "footer{color:var(--soft);font-size:13px;margin-top:20px}\n"
    /* A phone: a plot is as wide as the screen, and its figures stay as large as they are elsewhere. */
    "@media (max-width:560px){main{padding:16px 8px 48px}section{padding:14px 10px}"
    ".tick{font-size:16px}}";

/* No "less than" and no ampersand in it: they would have to be escaped in XML. */
static const char script[] =
    "var tip=document.getElementById('tip'),plots=document.querySelectorAll('svg.plot');\n"
    "function x(p,at){var low=+p.dataset.first,high=+p.dataset.last;"
    "return left+(right-left)*(at-low)/(high-low)}\n"
    "function find(r,over,at){if(over=='time')return r.before.filter(function(t){"
    "return at>=t}).length-1;return Math.floor((at-r.base+0.5)/r.width)}\n"
    /* In plots over something else: where the first run was then. */
    "function hair(over,at){var r=runs[0],i=find(r,over,at);plots.forEach(function(p){"
    "var to=at;if(p.dataset.over!=over)to=over=='time'?r.base+i*r.width:r.before[i];"
    "if(!(to>=+p.dataset.first))to=-1e9;if(to>+p.dataset.last)to=-1e9;var "
    "h=p.querySelector('.hair'),"
    "at1=Math.max(x(p,to),-9);h.setAttribute('x1',at1);h.setAttribute('x2',at1)})}\n"
    "function hide(){tip.hidden=true;plots.forEach(function(p){var h=p.querySelector('.hair');"
    "h.setAttribute('x1',-9);h.setAttribute('x2',-9)})}\n"
    "function show(e){var b=this.getBoundingClientRect(),px=(e.clientX-b.left)*size/b.width,"
    "over=this.dataset.over,low=+this.dataset.first,high=+this.dataset.last,"
    "at=low+(px-left)/(right-left)*(high-low),said=[];\n"
    "if(px>left)if(right>px)runs.forEach(function(r){var t=r.texts[find(r,over,at)];"
    "if(t)said.push(r.name?r.name+': '+t:t)});\n"
    "if(!said.length)return "
    "hide();tip.textContent=said.join('\\n');tip.hidden=false;hair(over,at)}\n"
    "plots.forEach(function(p){p.addEventListener('pointermove',show);"
    "p.addEventListener('pointerdown',show);p.addEventListener('pointerleave',hide)});\n";

void ex_html_style(FILE *out) {
    fprintf(out, "<style>\n%s%s%s\n</style>\n", colours, lines, page);
}

void ex_svg_style(FILE *out) {
    fprintf(out,
            "<style>\n%s%s.title{fill:var(--ink);font-size:14px;font-weight:600}"
            "text{font-family:system-ui,sans-serif}.back{fill:var(--card)}\n</style>\n",
            colours, lines);
}

void ex_html_script(FILE *out) {
    fprintf(out, "var size=%d,left=%d,right=%d;\n%s", EX_PLOT_WIDTH, EX_PLOT_LEFT, EX_PLOT_RIGHT,
            script);
}
