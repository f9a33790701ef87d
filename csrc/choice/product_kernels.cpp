// Choosing the kernels of products, and calling the chosen ones.
#include "choice/product_kernels.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/coded_layout.h"

namespace octavo {

ProductKernels::ProductKernels(const KernelTable& kernels) : first_(kernels) {
  for (auto& classes : choices_) classes.fill({&kernels, kDefaultAhead});
}

void ProductKernels::choose(Format format, int row_class, const KernelTable& kernels, int ahead) {
  if (row_class < 0 || row_class >= kRowClasses)
    throw std::invalid_argument("there is no class of rows " + std::to_string(row_class) +
                                ", only 0 to " + std::to_string(kRowClasses - 1));
  if (ahead < 0) throw std::invalid_argument("a prefetch distance is never negative");
  if (multiplies_bf16(format) && std::strcmp(kernels.order, first_.order) != 0)
    throw std::invalid_argument(std::string("the kernels of ") + kernels.name +
                                " add bf16 products up in the order '" + kernels.order +
                                "', and those of " + first_.name + " in the order '" +
                                first_.order +
                                "': a row's bits would depend on the rows beside it");
  choices_[static_cast<int>(format)][row_class] = {&kernels, ahead};
}

void ProductKernels::gemm(const Matrix& matrix, const uint8_t* prepared, int rows, int first_panel,
                    int end_panel, uint8_t* scratch, const Epilogue& epilogue) const {
  const Choice& choice = choices_[static_cast<int>(matrix.format)][row_class_of(rows)];
  choice.kernels->gemm(matrix, prepared, rows, first_panel, end_panel, scratch, epilogue,
                       choice.ahead);
}

}  // namespace octavo
