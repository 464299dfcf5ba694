// HTML from texts that may hold anything. A page of ours is one document that needs no network.
//
//   body += HtmlElement("h2", HtmlText(model_name));
//   Print(HtmlPage("A plan", body, HtmlScript::kPlan));
//
// Thread-safety: pure functions.
#ifndef TESSERA_CLIENT_HTML_H_
#define TESSERA_CLIENT_HTML_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

// `text` as HTML that shows it, also within an attribute's quotes: characters of markup escaped,
// control characters as spaces, and what is longer than `longest` bytes shortened in its middle.
inline constexpr size_t kLongestName = 200;
inline constexpr size_t kLongestSentence = 4'000;
std::string HtmlText(absl::string_view text, size_t longest = kLongestName);

// `html` within a tag. The tag may have attributes, which are taken as they are.
std::string HtmlElement(absl::string_view tag, absl::string_view html);

// A section with a heading, which is text; `html` follows it.
std::string HtmlSection(absl::string_view heading, absl::string_view html);

// A paragraph of text.
std::string HtmlParagraph(absl::string_view text);

// Of a list of `all` things of which `shown` are shown: that there are more, if there are.
std::string HtmlMore(size_t all, size_t shown);

struct HtmlColumn {
  std::string header;
  bool is_text = false;  // else a figure, aligned to the right
};

// Cells are HTML. Each says its column's header in data-label, for screens that are too narrow for
// columns.
std::string HtmlTable(const std::vector<HtmlColumn>& columns,
                      const std::vector<std::vector<std::string>>& rows);

enum class HtmlScript { kNone, kPlan };

// The whole document; `title` is text, `body` HTML.
std::string HtmlPage(absl::string_view title, absl::string_view body, HtmlScript script);

}  // namespace tessera

#endif  // TESSERA_CLIENT_HTML_H_
