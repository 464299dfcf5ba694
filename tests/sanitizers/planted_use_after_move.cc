// A string used after it was moved from: clang-tidy must report it.
#include <string>
#include <utility>
#include <vector>

namespace tessera {

std::string AppendTwice(std::vector<std::string>* lines, std::string line) {
  lines->push_back(std::move(line));
  return line;
}

}  // namespace tessera
