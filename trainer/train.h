// The training run: reads the data, builds the model, takes the steps, writes summary and trace.
#pragma once

#include "trainer/config.h"

namespace swapline::trainer {

// Throws: std::runtime_error (also when the device is full, with the options to turn), c10::Error.
void train(const Config& config);

}  // namespace swapline::trainer
