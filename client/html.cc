#include "client/html.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/plan_page_assets.h"
#include "client/text_table.h"

namespace tessera {

std::string HtmlText(absl::string_view text, size_t longest) {
  std::string html;
  for (const char c : ShortenMiddle(text, longest)) {
    switch (c) {
      case '&':
        absl::StrAppend(&html, "&amp;");
        break;
      case '<':
        absl::StrAppend(&html, "&lt;");
        break;
      case '>':
        absl::StrAppend(&html, "&gt;");
        break;
      case '"':
        absl::StrAppend(&html, "&quot;");
        break;
      case '\'':
        absl::StrAppend(&html, "&#39;");
        break;
      default:
        html.push_back(absl::ascii_iscntrl(c) ? ' ' : c);
    }
  }
  return html;
}

std::string HtmlElement(absl::string_view tag, absl::string_view html) {
  const std::pair<absl::string_view, absl::string_view> name =
      absl::StrSplit(tag, absl::MaxSplits(' ', 1));
  return absl::StrCat("<", tag, ">", html, "</", name.first, ">");
}

std::string HtmlSection(absl::string_view heading, absl::string_view html) {
  return absl::StrCat(
      HtmlElement("section", absl::StrCat("\n", HtmlElement("h2", HtmlText(heading)), "\n", html)),
      "\n");
}

std::string HtmlParagraph(absl::string_view text) {
  return HtmlElement("p", HtmlText(text, kLongestSentence)) + "\n";
}

std::string HtmlMore(size_t all, size_t shown) {
  if (all <= shown) return "";
  return HtmlParagraph(absl::StrCat(all - shown, " more, which --output=json has"));
}

std::string HtmlTable(const std::vector<HtmlColumn>& columns,
                      const std::vector<std::vector<std::string>>& rows) {
  std::string head;
  for (const HtmlColumn& column : columns) {
    absl::StrAppend(
        &head, HtmlElement(column.is_text ? "th scope=\"col\" class=\"text\"" : "th scope=\"col\"",
                           HtmlText(column.header)));
  }
  std::string body;
  for (const std::vector<std::string>& row : rows) {
    absl::StrAppend(&body, "<tr>");
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string tag = absl::StrCat("td data-label=\"", HtmlText(columns[i].header), "\"",
                                           columns[i].is_text ? " class=\"text\"" : "");
      absl::StrAppend(&body, HtmlElement(tag, row[i]));
    }
    absl::StrAppend(&body, "</tr>\n");
  }
  return absl::StrCat("<table>\n", HtmlElement("thead", HtmlElement("tr", head)), "\n",
                      HtmlElement("tbody", body), "</table>\n");
}

std::string HtmlPage(absl::string_view title, absl::string_view body, HtmlScript script) {
  // Whatever a name may hold, nothing is fetched and no form goes anywhere.
  constexpr absl::string_view kHead =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; "
      "form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  std::string page = absl::StrCat(kHead, HtmlElement("title", HtmlText(title)), "\n<style>\n",
                                  kPlanPageCss, "</style>\n</head>\n<body>\n", body);
  if (script == HtmlScript::kPlan) {
    absl::StrAppend(&page, "<script>\n", kPlanPageJs, "</script>\n");
  }
  absl::StrAppend(&page, "</body>\n</html>\n");
  return page;
}

}  // namespace tessera
