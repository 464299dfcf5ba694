// What notes of plans have in common: how they show units, and how many of a kind there are.
#ifndef TESSERA_COORDINATOR_PLAN_NOTES_H_
#define TESSERA_COORDINATOR_PLAN_NOTES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tessera {

inline std::string ShownUnit(absl::string_view fqn) {
  return fqn.empty() ? "the root unit" : absl::StrCat("unit \"", fqn, "\"");
}

inline std::string ShownModule(absl::string_view fqn) {
  return fqn.empty() ? "the root" : absl::StrCat("\"", fqn, "\"");
}

// Notes of one kind: the first ten, and how many more there are. Models have many equal layers.
class FoldedNotes {
 public:
  // `more` ends a sentence that begins with a number and "more ".
  explicit FoldedNotes(absl::string_view more) : more_(more) {}

  void Add(std::string note) {
    if (notes_.size() < kShown) notes_.push_back(std::move(note));
    ++count_;
  }
  // Whether the next would be shown: making up what is dropped may cost.
  bool full() const { return notes_.size() >= kShown; }
  void AddHidden() { ++count_; }

  void MoveTo(std::vector<std::string>* notes) {
    const int64_t hidden = count_ - static_cast<int64_t>(notes_.size());
    for (std::string& note : notes_) notes->push_back(std::move(note));
    if (hidden > 0) notes->push_back(absl::StrCat(hidden, " more ", more_));
  }

 private:
  static constexpr size_t kShown = 10;
  const std::string more_;
  std::vector<std::string> notes_;
  int64_t count_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_PLAN_NOTES_H_
