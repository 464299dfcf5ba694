// Reads the keys of a Hugging Face config.json. The first fault is kept and ends nothing: reading
// goes on with harmless values, and status() is asked once, before anything is built.
//
//   HfReader reader(config);
//   const int64_t hidden = reader.Size("hidden_size");
//   const bool bias = reader.Flag("attention_bias", false);
//   TESSERA_RETURN_IF_ERROR(reader.status());
//
// null means absent, as in transformers. Every fault is INVALID_ARGUMENT and names the key.
// Thread-safety: as a value.
#ifndef TESSERA_COORDINATOR_MODEL_IMPORT_HF_READER_H_
#define TESSERA_COORDINATOR_MODEL_IMPORT_HF_READER_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tessera {

// Bounds of what a config may ask for. Products of two sizes stay within int64; that of a whole
// shape is checked with the model.
inline constexpr int64_t kMaxHfSize = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaxHfLayers = 4'096;
// Layers times experts of a layer.
inline constexpr int64_t kMaxHfExperts = 32'768;

class HfReader {
 public:
  // `config` is an object and outlives the reader.
  explicit HfReader(const nlohmann::json& config) : config_(config) {}

  bool Has(const char* key) const;
  // An integer from 1 to `max` that has to be there.
  int64_t Size(const char* key, int64_t max = kMaxHfSize);
  // The same; `absent` where it is not there.
  int64_t Size(const char* key, int64_t max, int64_t absent);
  bool Flag(const char* key, bool absent);
  std::string Text(const char* key, absl::string_view absent);
  // More than 0, and at most 1.
  double Fraction(const char* key, double absent);
  // The class of the activation that a key names ("silu": SiLUActivation).
  std::string Activation(const char* key, absl::string_view absent);
  // The same for a value that stands within that of `key`.
  std::string ActivationClass(const char* key, absl::string_view name);
  // Outputs of a classifier: id2label's, else num_labels, else 2.
  int64_t Labels();
  // `whole` / `parts`. A fault where they do not divide, naming both keys.
  int64_t Divide(int64_t whole, const char* whole_key, int64_t parts, const char* parts_key);

  // Keeps the fault if it is the first.
  void Fault(const char* key, absl::string_view message);
  const absl::Status& status() const { return status_; }

 private:
  // nullptr: absent.
  const nlohmann::json* Find(const char* key) const;

  const nlohmann::json& config_;
  absl::Status status_;
};

}  // namespace tessera

#endif  // TESSERA_COORDINATOR_MODEL_IMPORT_HF_READER_H_
