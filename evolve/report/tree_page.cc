// The HTML page of a session.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "evolve/report/session_tree.h"

namespace niche::evolve::report {
namespace {

constexpr size_t kDiffLinesMax = 3000;
constexpr size_t kContext = 3;

std::string escaped(const std::string& s) {
  std::string out;
  for (char c : s) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += c;
  }
  return out;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string svg_curve(const std::vector<double>& curve) {
  double top = 1;
  for (double c : curve)
    if (c > 0) top = std::max(top, 1 / c);
  std::string points;
  char text[64];
  for (size_t i = 0; i < curve.size(); ++i) {
    if (curve[i] <= 0) continue;
    const double x =
        40 + 740.0 * static_cast<double>(i) / static_cast<double>(std::max<size_t>(1, curve.size() - 1));
    std::snprintf(text, sizeof text, "%.1f,%.1f ", x, 180 - 160 / curve[i] / top);
    points += text;
  }
  std::snprintf(text, sizeof text, "%.2fx", top);
  return "<svg viewBox='0 0 800 200' role='img' aria-label='best screened speed-up by evaluation'><line "
         "x1='40' "
         "y1='180' x2='780' "
         "y2='180'/><line x1='40' y1='20' x2='40' y2='180'/><text x='2' y='24'>" +
         std::string(text) + "</text><text x='740' y='196'>" + std::to_string(curve.size()) +
         " screened</text><polyline points='" + points + "'/></svg>";
}

std::string diff_html(const std::string& diff) {
  std::string out = "<pre>";
  for (const std::string& line : lines_of(diff)) {
    const char* tag = line.starts_with('+') ? "ins" : line.starts_with('-') ? "del" : "span";
    out += std::string("<") + tag + '>' + escaped(line) + "</" + tag + ">\n";
  }
  return out + "</pre>";
}

std::string node_html(const SessionTree& t, const store::NodeRow& n, bool best) {
  char cost[48] = "";
  if (n.cost > 0) std::snprintf(cost, sizeof cost, "%.3fx", 1 / n.cost);
  std::string out = "<b class='" + escaped(n.outcome) + "'>" +
                    (!best                   ? ""
                     : n.outcome == "faster" ? "&#9733; "
                                             : "&#9734; ") +
                    std::to_string(n.id) + ' ' + cost + ' ' + escaped(n.outcome) + "</b> " +
                    escaped(n.made_by + ": " + t.change(n));
  if (const std::string why = t.reason(n.id); !why.empty())
    out += " <i>" + escaped(why.substr(0, 400)) + "</i>";
  if (const auto d = t.digests.find(n.id); d != t.digests.end())
    out += "<details><summary>" + escaped(digest_brief(d->second)) + "</summary>" +
           escaped(digest_text(d->second)) + "<br>" + escaped(diagnosis_text(diagnose(d->second))) +
           "</details>";
  const auto mine = t.texts.find(n.id);
  if (mine == t.texts.end()) return out;
  const auto parent = t.texts.find(n.parent);
  out += parent == t.texts.end()
             ? "<details><summary>source</summary><pre>" + escaped(mine->second) + "</pre></details>"
             : "<details><summary>diff to " + std::to_string(n.parent) + "</summary>" +
                   diff_html(line_diff(parent->second, mine->second)) + "</details>";
  return out;
}

constexpr const char* kStyle =
    "<style>body{font:14px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 "
    "1em;color:#222;background:#fff}"
    "svg{width:100%;max-width:800px}svg line{stroke:#999}svg "
    "polyline{fill:none;stroke:#06c;stroke-width:2}svg text{font-size:12px}"
    "ul{list-style:none;padding-left:1.2em;border-left:1px solid "
    "#ddd}.faster{color:#070}.failed{color:#a00}i{color:#777}"
    "pre{background:#f6f6f6;padding:.6em;overflow:auto}ins{background:#dfd;text-decoration:none}del{"
    "background:#fdd;"
    "text-decoration:none}@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}pre{"
    "background:#222}ins{background:"
    "#143}del{background:#411}.faster{color:#6d6}.failed{color:#f77}}</style>";

}  // namespace

std::string line_diff(const std::string& a, const std::string& b) {
  const auto x = lines_of(a), y = lines_of(b);
  std::string all;
  std::vector<std::pair<char, const std::string*>> steps;
  if (x.size() > kDiffLinesMax || y.size() > kDiffLinesMax) {
    for (const auto& l : x) steps.emplace_back('-', &l);
    for (const auto& l : y) steps.emplace_back('+', &l);
  } else {
    // Longest common subsequence, after what is equal at both ends.
    size_t head = 0, tail = 0;
    while (head < x.size() && head < y.size() && x[head] == y[head]) ++head;
    while (tail < x.size() - head && tail < y.size() - head &&
           x[x.size() - 1 - tail] == y[y.size() - 1 - tail])
      ++tail;
    const size_t n = x.size() - head - tail, m = y.size() - head - tail;
    std::vector<std::vector<uint16_t>> length(n + 1, std::vector<uint16_t>(m + 1, 0));
    for (size_t i = n; i-- > 0;)
      for (size_t j = m; j-- > 0;)
        length[i][j] = x[head + i] == y[head + j] ? static_cast<uint16_t>(length[i + 1][j + 1] + 1)
                                                  : std::max(length[i + 1][j], length[i][j + 1]);
    for (size_t i = 0; i < head; ++i) steps.emplace_back(' ', &x[i]);
    for (size_t i = 0, j = 0; i < n || j < m;) {
      if (i < n && j < m && x[head + i] == y[head + j])
        steps.emplace_back(' ', &x[head + i]), ++i, ++j;
      else if (j == m || (i < n && length[i + 1][j] >= length[i][j + 1]))
        steps.emplace_back('-', &x[head + i++]);
      else
        steps.emplace_back('+', &y[head + j++]);
    }
    for (size_t i = x.size() - tail; i < x.size(); ++i) steps.emplace_back(' ', &x[i]);
  }
  std::vector<bool> keep(steps.size(), false);
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i].first != ' ')
      for (size_t k = i > kContext ? i - kContext : 0; k <= std::min(i + kContext, steps.size() - 1); ++k)
        keep[k] = true;
  bool gap = false;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!keep[i]) {
      gap = true;
      continue;
    }
    if (gap && !all.empty()) all += " ...\n";
    gap = false;
    all += steps[i].first + *steps[i].second + '\n';
  }
  return all;
}

std::string tree_page(const SessionTree& t) {
  std::map<int, std::vector<const store::NodeRow*>> children;
  for (const store::NodeRow& n : t.nodes) children[t.find(n.parent) != nullptr ? n.parent : -1].push_back(&n);
  const int best = t.best();
  std::string body;
  const std::function<void(int, int)> list = [&](int parent, int depth) {
    const auto at = children.find(parent);
    if (at == children.end()) return;
    // A lineage deeper than browsers like to nest goes on at one level.
    const bool nest = depth < 40;
    if (nest) body += "<ul>";
    for (const store::NodeRow* n : at->second) {
      body += "<li>" + node_html(t, *n, n->id == best);
      if (nest) list(n->id, depth + 1);
      body += "</li>\n";
      if (!nest) list(n->id, depth + 1);
    }
    if (nest) body += "</ul>";
  };
  list(-1, 0);
  std::string refused;
  for (const auto& [gate, n] : t.refused()) refused += ' ' + gate + ' ' + std::to_string(n);
  const auto& s = t.session;
  return "<!doctype html><html lang='en'><meta charset='utf-8'><meta name='viewport' "
         "content='width=device-width'><title>" +
         escaped(s.definition) + "</title>" + kStyle + "<h1>" + escaped(s.definition) + "</h1><p>" +
         escaped(s.id + ", " + s.arch + ", " + shown_state(s) + (s.reason.empty() ? "" : ": " + s.reason)) +
         "</p><p>" + std::to_string(t.nodes.size()) + " candidates; " + escaped(best_text(s)) +
         " (&#9733; confirmed by a verdict, &#9734; only screened); refused:" +
         escaped(refused.empty() ? " none" : refused) + "</p>" + svg_curve(t.curve()) +
         "<h2>Candidates</h2>" + body + "</html>\n";
}

}  // namespace niche::evolve::report
