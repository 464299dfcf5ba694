// Which requests were answered and with what, so that one that is sent again acts once. The last
// 10,000.
//
//   RequestLog answered;
//   answered.Add("id", {.method = "drain", .answer = job});
//   const StoredRequest* known = answered.Find("id");
//
// Thread-safety: none.
#ifndef TESSERA_COORDINATOR_REQUEST_LOG_H_
#define TESSERA_COORDINATOR_REQUEST_LOG_H_

#include <deque>
#include <map>
#include <string>
#include <utility>

#include "coordinator/state_store.h"

namespace tessera {

class RequestLog {
 public:
  explicit RequestLog(size_t limit = 10000) : limit_(limit) {}

  // Null: it is not known.
  const StoredRequest* Find(const std::string& id) const {
    const auto found = answers_.find(id);
    return found == answers_.end() ? nullptr : &found->second;
  }

  // The first answer counts. Returns the id of the one that had to go, "" for none.
  std::string Add(const std::string& id, StoredRequest request) {
    if (!answers_.emplace(id, std::move(request)).second) return "";
    order_.push_back(id);
    if (order_.size() <= limit_) return "";
    const std::string oldest = std::move(order_.front());
    order_.pop_front();
    answers_.erase(oldest);
    return oldest;
  }

 private:
  const size_t limit_;
  std::map<std::string, StoredRequest> answers_;
  std::deque<std::string> order_;  // oldest first
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_REQUEST_LOG_H_
