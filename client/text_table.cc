#include "client/text_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

constexpr size_t kGap = 2;
// A first cell of so many characters does not leave its row, however wide that is.
constexpr size_t kShortName = 12;

std::string Pad(const std::string& cell, size_t width, Align align) {
  const std::string spaces(width > cell.size() ? width - cell.size() : 0, ' ');
  return align == Align::kLeft ? cell + spaces : spaces + cell;
}

std::string WithoutTrailingSpaces(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

std::string TextTable::ToString() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(column.header.size());
  // The first column comes last: it gets what the others leave.
  size_t others = 0;
  for (size_t i = 1; i < columns_.size(); ++i) {
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row[i].size());
    others += widths[i] + kGap;
  }
  const size_t room = std::max(width_ > others ? width_ - others : 0, kShortName);
  for (const auto& row : rows_) {
    if (row[0].size() <= room) widths[0] = std::max(widths[0], row[0].size());
  }

  std::string text;
  const auto append = [&](const std::vector<std::string>& cells) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) line.append(kGap, ' ');
      line += Pad(cells[i], widths[i], columns_[i].align);
    }
    absl::StrAppend(&text, WithoutTrailingSpaces(line), "\n");
  };

  std::vector<std::string> headers;
  for (const Column& column : columns_) headers.push_back(column.header);
  append(headers);
  for (std::vector<std::string> row : rows_) {
    if (row[0].size() > widths[0]) {
      absl::StrAppend(&text, row[0], "\n");
      row[0].clear();
    }
    append(row);
  }
  return text;
}

std::string WithThousands(int64_t value) {
  std::string digits = absl::StrCat(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string ShortenMiddle(absl::string_view text, size_t columns) {
  constexpr absl::string_view kGapText = "...";
  if (text.size() <= columns) return std::string(text);
  const size_t room = std::max(columns, kGapText.size() + 2) - kGapText.size();
  // Bytes 10xxxxxx go on with the character before them.
  const auto goes_on = [&](size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80;
  };
  size_t head = (room + 1) / 2;
  while (head > 0 && goes_on(head)) --head;
  size_t tail = text.size() - room / 2;
  while (goes_on(tail)) ++tail;
  return absl::StrCat(text.substr(0, head), kGapText, text.substr(tail));
}

std::string WrapText(absl::string_view prefix, absl::string_view text) {
  constexpr size_t kColumns = 80;
  std::string wrapped;
  std::string line(prefix);
  bool empty = true;  // the line has no word yet
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      absl::StrAppend(&wrapped, line, "\n");
      line.assign(prefix.size(), ' ');
      empty = true;
    }
    if (!empty) line.push_back(' ');
    absl::StrAppend(&line, ShortenMiddle(word, kColumns - std::min(prefix.size(), kColumns / 2)));
    empty = false;
  }
  absl::StrAppend(&wrapped, line, "\n");
  return wrapped;
}

size_t WidestLine(absl::string_view text) {
  size_t widest = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    widest = std::max(widest, line.size());
  }
  return widest;
}

}  // namespace tessera
