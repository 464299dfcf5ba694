// A p-norm over many runs of elements, accumulated in double.
//
//   NormSum norm(2);
//   norm.Add(shard);
//   norm.AddTerm(term_of_another_rank);
//   norm.norm();
//
// Thread-safety: none.
#ifndef TESSERA_WORKER_NORM_H_
#define TESSERA_WORKER_NORM_H_

#include "worker/elements.h"

namespace tessera {

class NormSum {
 public:
  // `p`: 1 or more; infinity: the largest magnitude.
  explicit NormSum(double p) : p_(p) {}

  void Add(const FlatTensor& run);
  void AddTerm(double term);

  // Sum of |x|^p, of which ranks add theirs up; p infinity: the largest |x|. Not finite where an
  // element is not, or where powers of finite ones leave the range of a double.
  double term() const { return term_; }
  double norm() const;

 private:
  double p_;
  double term_ = 0;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_NORM_H_
