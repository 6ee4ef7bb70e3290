// k8v4 and int4 on AVX2: the forms of nibble_rows.h, by vpmaddubsw and vpmaddwd.
#include "kernels/attention/attention.h"
#include "kernels/attention/nibble_pairs.h"

namespace tally::kernels {
namespace {

using L = attention::Lanes256;
using attention::NibblePairs;
using attention::NibbleRows;

}  // namespace

void attend_k8v4_avx2(const AttendArgs& args) {
  attention::attend_tiles<NibbleRows<L, attention::Int8Keys<L, attention::Int8Pairs<L>>, NibblePairs<L>>>(
      args);
}
void attend_int4_avx2(const AttendArgs& args) {
  attention::attend_tiles<NibbleRows<L, attention::NibbleKeys<L>, NibblePairs<L>>>(args);
}

}  // namespace tally::kernels
