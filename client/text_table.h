// A text table in columns, for terminals of 80 columns or as many as are said.
//
//   TextTable table({{"UNIT", Align::kLeft}, {"BYTES", Align::kRight}});
//   table.AddRow({"h.0", "793,088"});
//   std::cout << table.ToString();
//
// Columns are as wide as their widest cell and two spaces apart. Names are never cut: a first cell
// of more than 12 characters that would make its row wider than that stands on a line of its
// own, above the rest of its row.
//
// Thread-safety: none; a value.
#ifndef TESSERA_CLIENT_TEXT_TABLE_H_
#define TESSERA_CLIENT_TEXT_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tessera {

enum class Align { kLeft, kRight };

class TextTable {
 public:
  struct Column {
    std::string header;
    Align align = Align::kRight;
  };

  explicit TextTable(std::vector<Column> columns, size_t width = 80)
      : columns_(std::move(columns)), width_(width) {}

  // One cell for each column.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Header and rows, each ended by a newline and without trailing spaces.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  size_t width_;
  std::vector<std::vector<std::string>> rows_;
};

// 1234567 as "1,234,567".
std::string WithThousands(int64_t value);

// `text` in at most `columns` bytes: "model.layers...weight" with "..." for what is left out of its
// middle. UTF-8 characters stay whole.
std::string ShortenMiddle(absl::string_view text, size_t columns);

// `text` after `prefix`, in lines of at most 80 columns, each ended by a newline; those after the
// first are indented by as much as `prefix` takes. A word that is too long for a line is shortened.
std::string WrapText(absl::string_view prefix, absl::string_view text);

// The bytes of the longest line.
size_t WidestLine(absl::string_view text);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TEXT_TABLE_H_
