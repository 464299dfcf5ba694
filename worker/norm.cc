#include "worker/norm.h"

#include <cmath>

namespace tessera {
namespace {

template <typename T>
double SumOfSquares(const T* values, int64_t numel) {
  double sum = 0;
  for (int64_t i = 0; i < numel; ++i) {
    const double value = values[i];
    sum += value * value;
  }
  return sum;
}

}  // namespace

void NormSum::Add(const FlatTensor& run) {
  if (p_ == 2 && run.dtype == v1::FLOAT32) {
    AddTerm(SumOfSquares(run.as<const float>(), run.numel));
    return;
  }
  NormSum sum(p_);
  for (int64_t i = 0; i < run.numel; ++i) {
    const double magnitude = std::abs(ElementOf(run.data, run.dtype, i));
    sum.AddTerm(p_ == 2 ? magnitude * magnitude
                        : (p_ == 1 || std::isinf(p_) ? magnitude : std::pow(magnitude, p_)));
  }
  AddTerm(sum.term());
}

void NormSum::AddTerm(double term) {
  if (!std::isinf(p_)) {
    term_ += term;
  } else if (!(term <= term_) && !std::isnan(term_)) {  // a NaN is taken, and stays
    term_ = term;
  }
}

double NormSum::norm() const {
  if (p_ == 1 || std::isinf(p_)) return term_;
  return p_ == 2 ? std::sqrt(term_) : std::pow(term_, 1 / p_);
}

}  // namespace tessera
